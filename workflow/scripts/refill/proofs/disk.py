"""A disk in a file, whose power can be cut: a loop device with ext4 or XFS. Needs root.

The cut is the file system's shutdown ioctl without a flush of its log: what was not fsynced is
gone, as after the loss of power of a disk that keeps its promises.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from refill.contexts import OpensParts
from refill.engines.description import EngineError
from refill.processes import wait_for
from refill.proofs.findings import NotRunError

FILE_SYSTEMS = ("ext4", "xfs")
IMAGE_NAME = "refill-power-cut.img"
IMAGE_BYTES = 384 << 20
# EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: _IOR('X', 125, __u32); 2: without a flush of the log.
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
COMMAND_S = 60.0
UNMOUNT_S = 20.0
_MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
_PACKAGE = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
_HOW = "run it as root: sudo make proof"


class DiskError(EngineError):
    """A command on the disk failed; the text has its words."""


class Disk(OpensParts):
    """A file system in a file. Used as a context: leaving it unmounts, detaches and removes it.

    Args:
        kind: `ext4` or `xfs`.
        folder: its own; made, and removed at the end. What a killed run left in it goes first.

    Raises:
        NotRunError: this process may not, or a program is missing.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__()
        self._kind = kind
        self._folder = folder.resolve()
        self._image = self._folder / IMAGE_NAME
        self.mount_point = self._folder / "mounted"
        self._device = ""

    def _start(self) -> None:
        if os.geteuid() != 0:
            raise NotRunError(f"needs root for a loop device; {_HOW}")
        for program, package in (
            (_MAKE[self._kind][0], _PACKAGE[self._kind]), ("losetup", "mount"), ("mount", "mount"),
        ):  # fmt: skip
            if shutil.which(program) is None:
                raise NotRunError(f"no {program} on PATH (Debian: apt-get install {package})")
        remove_leftovers(self._folder)
        self._open.callback(remove_leftovers, self._folder)
        self.mount_point.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run([*_MAKE[self._kind], str(self._image)])
        try:
            self._device = _run(["losetup", "--find", "--show", str(self._image)]).strip()
            self._mount()
        except DiskError as error:
            raise NotRunError(f"no loop device with {self._kind} here: {error}") from error

    def _mount(self) -> None:
        _run(["mount", "-t", self._kind, self._device, str(self.mount_point)])

    def cut(self) -> None:
        """Cut the power: from here on every access fails, and what was not synced is lost."""
        handle = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        except OSError as error:
            raise NotRunError(f"{self._kind} has no shutdown ioctl here: {error}") from error
        finally:
            os.close(handle)

    def come_back(self) -> None:
        """Unmount and mount, which recovers the file system's log. Nothing may be open in it.

        Raises:
            DiskError: it cannot be unmounted, or not mounted any more.
            NotRunError: another mount namespace holds it, which says nothing of the server.
        """
        _unmount(self.mount_point)
        # A container that starts takes all mounts along for a moment. Mounted again meanwhile, it
        # would be the same file system still, without its power.
        alive = Path("/sys/fs") / self._kind / Path(self._device).name
        if not wait_for(lambda: not alive.exists(), UNMOUNT_S, 0.01):
            raise NotRunError(
                f"somebody else holds the mount: {self._kind} on {self._device} stays in another "
                f"mount namespace {UNMOUNT_S:g} s after its unmount; try again without it"
            )
        self._mount()


def remove_leftovers(folder: Path) -> None:
    """Unmount, detach and remove what a disk in this folder left, such as after a kill.

    Every step is tried, also after one that failed.

    Raises:
        DiskError: something of it is still in use; the text names each path and command.
    """
    image, mount_point = folder / IMAGE_NAME, folder / "mounted"
    failed = []
    if _is_mounted(mount_point):
        try:
            _unmount(mount_point)
        except DiskError as error:
            failed.append(f"umount {mount_point}: {error}")
    try:
        devices = _devices_of(image)
    except DiskError as error:
        devices = []
        failed.append(f"devices of {image}: {error}")
    for device in devices:
        try:
            _run(["losetup", "--detach", device])
        except DiskError as error:
            failed.append(f"losetup --detach {device} ({image}): {error}")
    if failed:
        raise DiskError(f"left in {folder}, end it by hand: " + "; ".join(failed))
    shutil.rmtree(folder, ignore_errors=True)


def _devices_of(image: Path) -> list[str]:
    """Give the loop devices of an image, also of one that was removed under them."""
    if shutil.which("losetup") is None:
        return []
    rows = _run(["losetup", "--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"])
    found = []
    for row in rows.splitlines():
        name, _, file = row.partition(" ")
        # --raw writes a space and the like as \xNN; the kernel marks a removed file.
        plain = re.sub(r"\\x([0-9a-fA-F]{2})", lambda m: chr(int(m[1], 16)), file)
        if plain.removesuffix(" (deleted)") == str(image):
            found.append(name)
    return found


def _is_mounted(mount_point: Path) -> bool:
    """Say whether a path is a mount point; it cannot be asked itself once its power is cut."""
    # proc(5): the fifth field, with a space, tab, newline and backslash in octal.
    escaped = str(mount_point).translate({ord(c): f"\\{ord(c):03o}" for c in " \t\n\\"})
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split(" ")[4] == escaped for line in lines)


def _unmount(mount_point: Path) -> None:
    words: list[str] = []

    def try_once() -> bool:
        done = _done(["umount", str(mount_point)])
        words[:] = [done.stderr.strip()]
        return done.returncode == 0

    # The kernel lets go of a killed process's files a moment after its end.
    if not wait_for(try_once, UNMOUNT_S, 0.05):
        raise DiskError(f"umount: {words[0]}")


def _run(command: Sequence[str]) -> str:
    done = _done(command)
    if done.returncode != 0:
        raise DiskError(f"{command[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _done(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )  # fmt: skip
