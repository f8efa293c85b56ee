"""Another user to run an engine as, for engines that refuse to run as root."""

from __future__ import annotations

import os
import pwd
import re
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


def is_plain(path: Path) -> bool:
    """Say whether Java and the settings of its engines take a path for nothing but a path.

    A colon parts class paths, a comma lists, `${` begins a variable, `%` and `#` mean something in
    addresses of files, and letters beyond the first plane of Unicode have no place in a stream of
    settings.
    """
    return all(re.fullmatch(r"[\w ./@+~=-]", c) and ord(c) <= 0xFFFF for c in str(path))


def place_for(user: User | None, scratch: Path, plain: bool = False) -> Path:
    """Give a folder for an engine's data that its user can reach.

    It is `scratch`, or, where the user cannot come there (a home that is closed to others) or the
    path must be a plain one and is not, one of the same name every time below the folder for
    temporary files.

    Raises:
        EngineError: the user cannot reach that one either, or it is no plain path.
    """
    scratch = scratch.resolve()
    fits = is_plain(scratch) or not plain
    if user is None and fits:
        return scratch
    above = next(folder for folder in scratch.parents if folder.is_dir())
    if fits and user is not None and user.reaches(above):
        return scratch
    shared = Path(tempfile.gettempdir()).resolve()
    if user is not None and not user.reaches(shared):
        raise EngineError(
            f"the user {user.name} may enter neither the working folder nor {shared}: set TMPDIR "
            "to a folder that it may enter"
        )
    if plain and not is_plain(shared):
        raise EngineError(
            f"neither the path of the working folder nor {shared} is one that the engine can work "
            "in: set TMPDIR to a folder whose path has letters, digits, spaces and ./@+~=-_ alone"
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
    """Give a folder as its user can read it, at a plain path: itself, or a copy at `target`.

    A copy is made once. A link would not do: Java looks up where it leads.
    """
    source = source.resolve()
    if is_plain(source) and (user is None or user.reaches(source)):
        return source
    if not target.exists():
        shutil.copytree(source, target)
    return target
