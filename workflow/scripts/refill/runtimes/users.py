"""Another user to run an engine as, for engines that refuse to run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from refill.engines.description import EngineError


@dataclass(frozen=True)
class User:
    """A user of this machine."""

    name: str
    uid: int
    gid: int

    def reaches(self, path: Path) -> bool:
        """Say whether this user may enter every folder above `path`, and read `path` itself."""
        path = path.resolve()
        folders = [*path.parents, *([path] if path.is_dir() else [])]
        readable = self._may(path, stat.S_IRUSR)
        return readable and all(self._may(folder, stat.S_IXUSR) for folder in folders)

    def _may(self, path: Path, bit: int) -> bool:
        """Say whether a bit of the owner's three holds for this user, by owner, group or other."""
        found = path.stat()
        if found.st_uid == self.uid:
            return bool(found.st_mode & bit)
        return bool(found.st_mode & (bit >> 3 if found.st_gid == self.gid else bit >> 6))


def other_user(name: str | None) -> User | None:
    """Give the user that an engine is run as; None: as oneself.

    Only root can become another user, and only root has to.

    Raises:
        EngineError: there is no such user, or it is root again.
    """
    if name is None or os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise EngineError(
            f"there is no user {name!r}, which an engine that refuses root would run as: name "
            "another one under rounds.native.user"
        ) from None
    if entry.pw_uid == 0:
        raise EngineError(f"the user {name!r} is root, which the engine refuses: name another one")
    return User(name, entry.pw_uid, entry.pw_gid)


def place_for(user: User | None, scratch: Path) -> Path:
    """Give a folder for an engine's data that its user can reach.

    It is `scratch`, or, where the user cannot come there (a home that is closed to others), one
    of the same name every time below the folder for temporary files.

    Raises:
        EngineError: the user cannot reach that one either.
    """
    scratch = scratch.resolve()
    if user is None:
        return scratch
    above = next(folder for folder in scratch.parents if folder.is_dir())
    if user.reaches(above):
        return scratch
    shared = Path(tempfile.gettempdir()).resolve()
    if not user.reaches(shared):
        raise EngineError(
            f"the user {user.name} may enter neither the working folder nor {shared}: set TMPDIR "
            "to a folder that it may enter"
        )
    return elsewhere(scratch)


def elsewhere(scratch: Path) -> Path:
    """Give the folder that takes the place of `scratch` where its user cannot come there."""
    shared = Path(tempfile.gettempdir()).resolve()
    return shared / f"refill-{sha256(str(scratch.resolve()).encode()).hexdigest()[:16]}"


def hand_over(folder: Path, user: User) -> None:
    """Make a user the owner of a folder and all in it."""
    os.chown(folder, user.uid, user.gid)
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(parent) / name, user.uid, user.gid, follow_symlinks=False)


def take_copy(source: Path, target: Path, user: User | None) -> Path:
    """Give a folder as its user can read it: itself, or a copy at `target`."""
    if user is None or user.reaches(source):
        return source.resolve()
    shutil.copytree(source, target, dirs_exist_ok=True)
    return target
