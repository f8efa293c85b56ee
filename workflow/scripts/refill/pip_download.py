"""pip as it is used here: it fetches files whose hashes are pinned, and installs nothing."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from refill.processes import die_with_parent

TIMEOUT_S = 900
_ALWAYS = (
    "--no-deps", "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
    "--retries", "2", "--require-hashes",
)  # fmt: skip


class PipError(Exception):
    """pip did not fetch what was wanted.

    Attributes:
        said: the lines of its output, then of its standard error, without empty ones.
        timed_out: whether it was ended for having taken `TIMEOUT_S`.
    """

    def __init__(self, said: str, timed_out: bool) -> None:
        super().__init__(said)
        self.said = [line.strip() for line in said.splitlines() if line.strip()]
        self.timed_out = timed_out


def pip_download(wanted: Sequence[tuple[str, Sequence[str]]], dest: Path, *options: str) -> None:
    """Fetch files of packages into a folder, which is made.

    With their hashes given, pip takes no other file of a version and unpacks none unchecked.

    Args:
        wanted: of each package `name==version` and the SHA-256 of every file that will do.
        dest: the folder.
        options: which kinds of files, and for what platform.

    Raises:
        PipError: they cannot be had.
    """
    lines = [
        " ".join([name, *(f"--hash=sha256:{one}" for one in hashes)]) for name, hashes in wanted
    ]
    with tempfile.TemporaryDirectory(prefix="refill-pip-") as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", *_ALWAYS, *options]
        command += ["--requirement", str(requirements), "--dest", str(dest)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                preexec_fn=die_with_parent,
            )
        except subprocess.TimeoutExpired:
            raise PipError("", True) from None
    if done.returncode != 0:
        raise PipError(done.stdout + done.stderr, False)
