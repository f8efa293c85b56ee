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
from refill.processes import wait_for
from refill.proofs.findings import HarnessError, NotRunError

FILE_SYSTEMS = ("ext4", "xfs")
IMAGE_NAME, MOUNT_NAME = "refill-power-cut.img", "mounted"
IMAGE_BYTES = 384 << 20
# EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: _IOR('X', 125, __u32); 2: without a flush of the log.
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
COMMAND_S = 60.0
UNMOUNT_S = 20.0
_MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
_PACKAGE = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
_HOW = "run it as root: sudo make proof"


class DiskError(HarnessError):
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
        self.mount_point = self._folder / MOUNT_NAME
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


def left_below(folder: Path) -> list[Path]:
    """Give the folders of disks below a folder that are mounted or attached still, in any depth.

    From the kernel's own lists, as the files may be gone: `rm -rf results` after a kill takes the
    image away, and its loop device stays.
    """
    folder = folder.resolve()
    mounted = [path.parent for path in _mount_points() if path.name == MOUNT_NAME]
    attached = [path.parent for path in _attached().values() if path.name == IMAGE_NAME]
    return sorted({path for path in (*mounted, *attached) if path.is_relative_to(folder)})


def remove_leftovers(folder: Path) -> None:
    """Unmount, detach and remove what a disk in this folder left, such as after a kill.

    Every step is tried, also after one that failed.

    Raises:
        DiskError: something of it is still in use; the text names each path and command.
    """
    image, mount_point = folder / IMAGE_NAME, folder / MOUNT_NAME
    failed = []
    if mount_point in _mount_points():
        try:
            _unmount(mount_point)
        except DiskError as error:
            failed.append(f"umount {mount_point}: {error}")
    for device in [device for device, file in _attached().items() if file == image]:
        try:
            _run(["losetup", "--detach", device])
        except DiskError as error:
            failed.append(f"losetup --detach {device} ({image}): {error}")
    if failed:
        raise DiskError(f"left in {folder}, end it by hand: " + "; ".join(failed))
    shutil.rmtree(folder, ignore_errors=True)


def _attached() -> dict[str, Path]:
    """Give the file behind each loop device, also one that was removed under it."""
    found = {}
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            # losetup(8) escapes names, the kernel does not; it marks a removed file.
            name = os.fsdecode(entry.read_bytes()).removesuffix("\n").removesuffix(" (deleted)")
        except OSError:
            continue  # detached in between
        found[f"/dev/{entry.parent.parent.name}"] = Path(name)
    return found


def _mount_points() -> list[Path]:
    """Give all mount points: one whose power is cut cannot be asked itself whether it is one."""
    # proc(5): the fifth field; a space, tab, newline and backslash stand there in octal.
    fields = (
        line.split(b" ")[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines()
    )
    return [
        Path(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), field)))
        for field in fields
    ]


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
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMMAND_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DiskError(f"{command[0]}: runs on after {COMMAND_S:g} s") from None
