"""Where the files of an image come from: a tree of this project, a variant over it, or Git."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from refill.evidence.hashes import sha256_bytes, sha256_tree
from refill.told import ToldError

IMAGES = Path("config/images.yaml")
GIT_TIMEOUT_S = 900

_URL = re.compile(r"[a-z][a-z0-9+.-]*://|[^/\\]+@[^/\\]+:")
# A hook's or an outer command's repository must not become this one's.
_GIT_OWN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


class ImageError(ToldError, ValueError):
    """An image cannot be pinned or built; the text names the image, the files and what to do."""


@dataclass(frozen=True)
class Source:
    """The files of an image as they are now.

    Attributes:
        files: content by POSIX path in the image, sorted.
        places: the file of the project that a path comes from; empty for Git.
        executable: the paths whose files may be executed; empty for a Python archive from a tree.
        revision: the commit, for a source in Git.
        committed_at: when it was made, in seconds since 1970; None without Git.
    """

    files: dict[str, bytes]
    places: dict[str, str]
    executable: frozenset[str] = frozenset()
    revision: str | None = None
    committed_at: int | None = None

    def state(self) -> dict[str, Any]:
        """Give {"tree": SHA-256 over all files, "files": {path: SHA-256}}.

        Beside them, where there are such, "executable": paths, and for Git "revision".
        """
        files = {name: sha256_bytes(data) for name, data in self.files.items()}
        state: dict[str, Any] = {"tree": sha256_tree(files), "files": files}
        if self.executable:
            state["executable"] = sorted(self.executable)
        return state if self.revision is None else state | {"revision": self.revision}


def read_source(project: Path, entry: Mapping[str, Any]) -> Source:
    """Read the files of an image.

    Args:
        project: the folder that paths of the entry are relative to.
        entry: the image's part of config/images.yaml: `tree`, perhaps with `variant`, or `git`.

    Raises:
        ImageError: no such folder, repository or revision, nothing in it, or a symbolic link.
    """
    if "git" in entry:
        return _from_git(project, entry["git"])
    tree, variant = entry["tree"], entry.get("variant")
    found = {name: (path, tree) for name, path in tree_files(project, tree).items()}
    if variant is not None:
        others = _variants_folder(tree, variant)
        found = {name: place for name, place in found.items() if not name.startswith(others)}
        found |= {name: (path, variant) for name, path in tree_files(project, variant).items()}
    # Python reads an archive whatever the modes of its files were, and not every file system keeps
    # them; an image that Docker alone builds may hold programs.
    modes = {name: path.stat().st_mode for name, (path, _) in found.items()}
    runs = [name for name, mode in modes.items() if mode & stat.S_IXUSR]
    return Source(
        {name: found[name][0].read_bytes() for name in sorted(found)},
        {name: f"{folder}/{name}" for name, (_, folder) in found.items()},
        frozenset(runs if entry.get("runtime") == "docker" else ()),
    )


def tree_files(project: Path, tree: str) -> dict[str, Path]:
    """Return the files of a tree that count, by POSIX path in the tree, sorted.

    Compiled Python and what is in hidden folders (caches of tools) never count, nor, in a Git work
    tree, what .gitignore files leave out.
    Raises ImageError for a missing or empty tree and for a symbolic link, whose meaning depends
    on the machine.
    """
    root = project / tree
    if not root.is_dir():
        raise ImageError(f"{tree}: no such folder in the project: mend its image in {IMAGES}")
    paths = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    found = {path.relative_to(root).as_posix(): path for path in paths}
    found = {name: path for name, path in found.items() if not _cached(name)}
    kept = _kept_by_git(project, tree)
    if kept is not None:
        found = {name: path for name, path in found.items() if name in kept}
    _check_found(tree, found, [name for name, path in found.items() if path.is_symlink()])
    return dict(sorted(found.items()))


def shown(entry: Mapping[str, Any]) -> str:
    """Return how messages name the source of an image."""
    if "git" in entry:
        return f"revision {entry['git']['revision']} of {_shown_repository(entry['git'])}"
    variant = entry.get("variant")
    return f"{entry['tree']} with {variant}" if variant else str(entry["tree"])


def source_record(entry: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return what an image's record says of its source."""
    if "git" not in entry:
        record = {"kind": "tree", "path": entry["tree"]}
        return record | ({"variant": entry["variant"]} if "variant" in entry else {})
    git = entry["git"]
    return {
        "kind": "git",
        "repository": _shown_repository(git),
        "path": git.get("path"),
        "revision": git["revision"],
        "commit": source.revision,
    }


def _variants_folder(tree: str, variant: str) -> str:
    """Return the folder of all variants, as a prefix of paths in the tree, which is left out."""
    parent = PurePosixPath(variant).parent
    if parent == PurePosixPath(tree):
        raise ImageError(
            f"{variant}: stands in {tree} itself, so its files are part of every variant: put the "
            f"variants into a folder of their own ({tree}/variants/...)"
        )
    if not parent.is_relative_to(tree):
        return "\0"  # outside of the tree: no path in it begins so
    return f"{parent.relative_to(tree).as_posix()}/"


def _check_found(where: str, found: Mapping[str, Any], links: list[str]) -> None:
    if links:
        names = ", ".join(sorted(links))
        raise ImageError(f"{where}: {names}: is a symbolic link: put the file there")
    if not found:
        raise ImageError(f"{where}: holds no file that counts: is it ignored by Git?")


def _cached(name: str) -> bool:
    folders = name.split("/")[:-1]
    hidden = any(folder.startswith(".") for folder in folders)
    return hidden or "__pycache__" in folders or name.endswith(".pyc")


def _kept_by_git(project: Path, tree: str) -> set[str] | None:
    """Return the paths in the tree that Git keeps or would add; None outside of a work tree.

    Only .gitignore files of the project count, so that a user's own excludes change nothing.
    """
    if not (project / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["ls-files", "-z", "--cached", "--others"]
    command += ["--exclude-per-directory=.gitignore", "--", "."]
    done = _git(tree, project / tree, *command)
    return {name for name in done.decode().split("\0") if name}


def _from_git(project: Path, git: Mapping[str, Any]) -> Source:
    revision, where = git["revision"], _shown_repository(git)
    with _repository(project, git) as folder:
        commit = _commit(where, folder, revision)
        tree = commit
        if path := git.get("path"):
            what = f"no folder {path!r} in {revision}"
            tree = _resolved(where, folder, f"{commit}:{path}", what)
        data = _git(where, folder, "archive", "--format=tar", tree)
        committed_at = int(_git(where, folder, "show", "--no-patch", "--format=%ct", commit))
    files: dict[str, bytes] = {}
    executable: set[str] = set()
    links: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isdir() or _cached(member.name):
                continue
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is None:
                links.append(member.name)
                continue
            files[member.name] = stream.read()
            if member.mode & stat.S_IXUSR:
                executable.add(member.name)
    _check_found(where, files, links)
    return Source(dict(sorted(files.items())), {}, frozenset(executable), commit, committed_at)


def _commit(where: str, folder: Path, revision: str) -> str:
    """Return the full name of the one commit that a revision means."""
    try:
        return _resolved(where, folder, f"{revision}^{{commit}}", f"no revision {revision!r}")
    except ImageError:
        meant = _git(where, folder, "rev-parse", f"--disambiguate={revision}").decode().split()
        if len(meant) < 2:
            raise
        names = ", ".join(name[:12] for name in sorted(meant))
        raise ImageError(
            f"{where}: revision {revision!r} is the begin of {names}: give more of it in {IMAGES}"
        ) from None


def _resolved(where: str, folder: Path, name: str, otherwise: str) -> str:
    wanted = ("--verify", "--quiet", "--end-of-options", name)
    try:
        return _git(where, folder, "rev-parse", *wanted).decode().strip()
    except ImageError:
        raise ImageError(f"{where}: has {otherwise}: mend its image in {IMAGES}") from None


@contextmanager
def _repository(project: Path, git: Mapping[str, Any]) -> Iterator[Path]:
    """Give a folder with the repository: the one that is there, or a clone for the moment."""
    given, where = git["repository"], _shown_repository(git)
    if shutil.which("git") is None:
        raise ImageError(f"{where}: git is not installed, it is needed for a source in Git")
    if not _URL.match(given):
        folder = project / given
        if not folder.is_dir():
            raise ImageError(f"{where}: no such folder: mend `git.repository` in {IMAGES}")
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="refill-image-") as temporary:
        folder = Path(temporary)
        _git(where, folder, "clone", "--quiet", "--bare", "--", given, str(folder / "clone"))
        yield folder / "clone"


def _shown_repository(git: Mapping[str, Any]) -> str:
    """Return how a repository is named where others read it: a folder of this machine is not."""
    given: str = git["repository"]
    if not _URL.match(given):
        return PurePosixPath(given).name if given.startswith("/") else given
    parts = urlsplit(given)
    if parts.password or (parts.username and parts.scheme in ("http", "https")):
        raise ImageError(
            f"{IMAGES}: git.repository holds a user or password, which records would show: take "
            "it out, and let Git's credential helper answer"
        )
    return PurePosixPath(parts.path).name if parts.scheme == "file" else given


def _git(where: str, folder: Path, *arguments: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if name not in _GIT_OWN}
    # Without a user's own ideas of line ends and attributes.
    plain = ("-c", "core.autocrlf=false", "-c", f"core.attributesFile={os.devnull}")
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *plain, *arguments],
            env=environment | {"GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(
            f"{where}: git {arguments[0]} did not finish in {GIT_TIMEOUT_S} s: check the network"
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise ImageError(f"{where}: git {arguments[0]} failed: {said}")
    return done.stdout
