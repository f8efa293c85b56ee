"""Images that are built here: a pinned tree, its deterministic archive, and the record of both.

    python -m refill.images pin NAME      write the present state of the tree into images.yaml
    python -m refill.images check [NAME]  say whether trees are as they are pinned

An image is named by its content: the SHA-256 of a zip archive that Python runs, whose bytes
depend on the files of the tree and on nothing else (no compression, fixed times and modes).
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from refill.config import PROJECT, ConfigError, load_images
from refill.config.errors import nearest
from refill.config.yamlfile import parse_yaml
from refill.evidence.hashes import sha256_bytes, sha256_file, sha256_tree
from refill.evidence.records import write_bytes, write_json

SCHEMA = "refill.image/1"
IMAGES = Path("config/images.yaml")

_STAMP = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_UNIX = 3


class ImageError(ValueError):
    """An image cannot be pinned or built; the text names the image, the files and what to do."""


def tree_files(project: Path, tree: str) -> dict[str, Path]:
    """Return the files of a tree that count, by POSIX path in the tree, sorted.

    Compiled Python and what is in hidden folders (caches of tools) never count, nor, in a Git work
    tree, what .gitignore files leave out.
    Raises ImageError for a missing or empty tree and for a symbolic link, whose meaning depends
    on the machine.
    """
    root = project / tree
    if not root.is_dir():
        raise ImageError(f"{tree}: no such folder in the project: mend `tree` in {IMAGES}")
    paths = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    found = {path.relative_to(root).as_posix(): path for path in paths}
    found = {name: path for name, path in found.items() if not _cached(name)}
    kept = _kept_by_git(project, tree)
    if kept is not None:
        found = {name: path for name, path in found.items() if name in kept}
    links = sorted(name for name, path in found.items() if path.is_symlink())
    if links:
        raise ImageError(f"{tree}: {', '.join(links)}: is a symbolic link: put the file there")
    if not found:
        raise ImageError(f"{tree}: holds no file that counts: is it ignored by Git?")
    return dict(sorted(found.items()))


def tree_hashes(project: Path, tree: str) -> dict[str, Any]:
    """Return {"tree": SHA-256 over all files, "files": {path: SHA-256}} of a tree as it is now."""
    files = {name: sha256_file(path) for name, path in tree_files(project, tree).items()}
    return {"tree": sha256_tree(files), "files": files}


def check(project: Path, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tree_hashes` of an image's tree when it is as pinned.

    `entry` is the image's part of config/images.yaml. Raises ImageError that lists the changed,
    added and missing files otherwise, or says that nothing is pinned.
    """
    now = tree_hashes(project, entry["tree"])
    again = f"`make pin` (python -m refill.images pin {name})"
    pinned = entry["pinned"]
    if pinned is None:
        raise ImageError(f"{name}: {entry['tree']} is not pinned in {IMAGES}: run {again}")
    if now == pinned:
        return now
    old, new = pinned["files"], now["files"]
    kinds = {
        "changed": [path for path in old.keys() & new.keys() if old[path] != new[path]],
        "added": list(new.keys() - old.keys()),
        "missing": list(old.keys() - new.keys()),
    }
    lines = [f"  {kind}: {path}" for kind, paths in kinds.items() for path in sorted(paths)]
    if not lines:
        lines = [f"  the files are as pinned, `pinned.tree` is not their hash ({now['tree']})"]
    raise ImageError(
        f"{name}: {entry['tree']} has drifted from the state pinned in {IMAGES}:\n"
        + "\n".join(lines)
        + f"\nundo the change, or, if it is meant, run {again}"
    )


def archive(project: Path, tree: str) -> bytes:
    """Return the zip archive of a tree: the same bytes for the same files, everywhere.

    It runs with `python <archive>`, so the tree needs a `__main__.py` at its root. Raises
    ImageError when there is none.
    """
    files = tree_files(project, tree)
    if "__main__.py" not in files:
        raise ImageError(f"{tree}: has no __main__.py, so Python cannot run its archive: add it")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, path in files.items():
            info = zipfile.ZipInfo(name, _STAMP)
            info.create_system = _UNIX
            info.external_attr = _MODE
            file.writestr(info, path.read_bytes())
    return buffer.getvalue()


def build(
    project: Path,
    name: str,
    entry: Mapping[str, Any],
    archive_path: Path,
    record_path: Path,
    code: str,
) -> dict[str, Any]:
    """Build an image from its pinned tree: write the archive and its record, return the record.

    `archive_path` and `record_path` are below the working folder of the workflow and recorded
    relative to it, `code` is the hash of the code that builds. Raises ImageError as `check` and
    `archive`, and when a dependency of the image is not installed.
    """
    state = check(project, name, entry)
    data = archive(project, entry["tree"])
    digest = sha256_bytes(data)
    record = {
        "schema": SCHEMA,
        "name": name,
        "id": f"sha256:{digest}",
        "archive": _relative(archive_path),
        "tag": f"{name}:{digest[:12]}",
        "source": {"kind": "tree", "path": entry["tree"]},
        "tree": state["tree"],
        "files": state["files"],
        "build_arguments": {},
        "dependencies": {package: _version(name, package) for package in entry["dependencies"]},
        "code": code,
    }
    write_bytes(archive_path, data)
    write_json(record_path, record)
    return record


def pin(project: Path, name: str) -> dict[str, Any]:
    """Write the present state of an image's tree into config/images.yaml; return the state.

    Only the value of its `pinned` changes: comments and other images stay as they are. Raises
    ImageError for an unknown image, ConfigError when the file is not valid.
    """
    path = project / IMAGES
    images = load_images(path)
    if name not in images:
        raise ImageError(f"no image {name!r}: {nearest(name, images)}{IMAGES} has " + _list(images))
    state = tree_hashes(project, images[name]["tree"])
    text = path.read_text(encoding="utf-8")
    new = _with_pinned(text, name, state)
    expected = {key: dict(entry) for key, entry in images.items()}
    expected[name]["pinned"] = state
    if parse_yaml(new, path)["images"] != expected:
        raise ImageError(f"{IMAGES}: cannot change images.{name}.pinned alone: write it as a block")
    write_bytes(path, new.encode())
    return state


def main(arguments: Sequence[str] | None = None, project: Path = PROJECT) -> int:
    """Run the command line; return the exit status: 0 good, 1 drift or error."""
    parser = argparse.ArgumentParser(prog="python -m refill.images", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    pinning = commands.add_parser("pin", help="write the present state into config/images.yaml")
    pinning.add_argument("name")
    checking = commands.add_parser("check", help="compare the trees with what is pinned")
    checking.add_argument("name", nargs="?")
    options = parser.parse_args(arguments)
    try:
        if options.command == "pin":
            state = pin(project, options.name)
            sys.stdout.write(f"{options.name}: pinned {len(state['files'])} files\n")
            return 0
        images = load_images(project / IMAGES)
        if options.name is not None and options.name not in images:
            raise ImageError(f"no image {options.name!r}: {IMAGES} has {_list(images)}")
        for name in [options.name] if options.name else images:
            check(project, name, images[name])
            sys.stdout.write(f"{name}: as pinned\n")
    except (ImageError, ConfigError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


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
    command = ["git", "ls-files", "-z", "--cached", "--others"]
    command += ["--exclude-per-directory=.gitignore", "--", "."]
    done = subprocess.run(command, cwd=project / tree, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ImageError(f"{tree}: git ls-files failed: {done.stderr.decode().strip()}")
    return {name for name in done.stdout.decode().split("\0") if name}


def _version(image: str, package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImageError(
            f"{image}: dependency {package!r} is not installed: install requirements.lock "
            "(`make setup`)"
        ) from None


def _relative(path: Path) -> str:
    whole = path.resolve()
    here = Path.cwd()
    if not whole.is_relative_to(here):
        raise ImageError(f"{path.name}: must be written below the workflow's working folder")
    return whole.relative_to(here).as_posix()


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(names)


def _with_pinned(text: str, name: str, state: Mapping[str, Any]) -> str:
    """Return the text of images.yaml with images.<name>.pinned replaced by `state`."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in ("images", name, "pinned"):
        key_node, node = next(pair for pair in node.value if pair[0].value == key)
    indent = " " * (key_node.start_mark.column + 2)
    body = yaml.safe_dump(dict(state), sort_keys=True, allow_unicode=True, width=1000)
    block = "".join(f"\n{indent}{line}" for line in body.splitlines())
    # The end of a block is marked at the next key, behind comments: its last value ends it.
    while isinstance(node, yaml.MappingNode) and not node.flow_style:
        node = node.value[-1][1]
    rest = text[node.end_mark.index :].removeprefix("\n")
    return f"{text[: key_node.end_mark.index]}:{block}\n{rest}"


if __name__ == "__main__":
    sys.exit(main())
