"""One measurement at a time on this machine, whoever started it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Not the temporary folder of the user's choice: the lock is the machine's.
DEFAULT_PATH = Path("/tmp/refill-measurement.lock")


@contextmanager
def machine_lock(say: Callable[[str], None], path: Path | None = None) -> Iterator[float]:
    """Hold the machine's lock; wait for it, and say so, while another measurement has it.

    The kernel frees the lock when its holder ends, however it ends. Clocks start inside.

    Args:
        say: takes one line when there is something to wait for.
        path: the lock file; default: one path for the whole machine, or `REFILL_LOCK`.

    Yields:
        Seconds that were waited.
    """
    path = path or Path(os.environ.get("REFILL_LOCK") or DEFAULT_PATH)
    start = time.monotonic()
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another measurement runs on this machine; this one waits until it is over")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield time.monotonic() - start
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    """Open the lock file, which may be another user's: a lock needs no right to write.

    It is not created where it exists: in a shared folder Linux refuses that to other users.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # Readable by all whatever the umask says, or others could not wait for it.
        handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.fchmod(handle, 0o644)
        return handle
