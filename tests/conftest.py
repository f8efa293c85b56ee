"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let a Ctrl+C that a test sends be heard, whoever started the tests.

    A shell ignores it in what it starts in the background, and so do all children.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
