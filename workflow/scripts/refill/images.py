"""Images that are built here: a pinned source, its deterministic archive, and the record of both.

    python -m refill.images pin [NAME ...]    write the present state of sources into images.yaml
    python -m refill.images check [NAME ...]  say whether sources are as they are pinned

An image is named by its content: the SHA-256 of a zip archive that Python runs, whose bytes
depend on the files of its source and on nothing else (no compression, fixed times and modes).
"""

from __future__ import annotations

import argparse
import io
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
from refill.image_sources import IMAGES, ImageError, Source, read_source, shown, source_record

SCHEMA = "refill.image/1"

_STAMP = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_UNIX = 3

Entries = Mapping[str, Mapping[str, Any]]


def needed(entries: Entries, name: str) -> dict[str, Any]:
    """Return the entries that an image is built from: its own, and the one it `differs_from`."""
    names = {name}
    if "differs_from" in entries[name]:
        names.add(_base(name, entries))
    return {name: entries[name] for name in sorted(names)}


def check(project: Path, name: str, entries: Entries, fetch: bool = True) -> dict[str, Any]:
    """Return the state of an image's source when it is as pinned.

    Args:
        project: the folder that the paths of entries are relative to.
        name: the image.
        entries: config/images.yaml by name, at least `needed`.
        fetch: look into Git repositories too; without it their pins are believed.

    Returns:
        {"tree": SHA-256 over all files, "files": {path: SHA-256}}, for Git "revision".

    Raises:
        ImageError: nothing is pinned, the source has drifted (with the changed, added and missing
            files), or it differs from the image it is named to differ from in other files than
            those that are named.
    """
    return _checked(project, name, entries, fetch)[0]


def checked_source(project: Path, name: str, entries: Entries) -> tuple[dict[str, Any], Source]:
    """Return an image's source beside its state, as `check`, for a build from what was checked."""
    state, source = _checked(project, name, entries, fetch=True)
    assert source is not None
    return state, source


def _checked(
    project: Path, name: str, entries: Entries, fetch: bool
) -> tuple[dict[str, Any], Source | None]:
    state, source = _as_pinned(project, name, entries[name], fetch)
    rule = entries[name].get("differs_from")
    if rule is not None:
        base = _base(name, entries)
        other = _as_pinned(project, base, entries[base], fetch)[0]
        _check_difference(name, rule, state["files"], other["files"])
    return state, source


def _base(name: str, entries: Entries) -> str:
    base: str = entries[name]["differs_from"]["image"]
    if base not in entries or base == name:
        others = [other for other in entries if other != name]
        raise ImageError(
            f"{name}: differs_from.image: no other image {base!r}: {nearest(base, others)}{IMAGES} "
            f"has {', '.join(others)}"
        )
    return base


def _as_pinned(
    project: Path, name: str, entry: Mapping[str, Any], fetch: bool
) -> tuple[dict[str, Any], Source | None]:
    pinned, what = entry["pinned"], shown(entry)
    again = f"`make pin` (python -m refill.images pin {name})"
    if pinned is None:
        raise ImageError(f"{name}: {what} is not pinned in {IMAGES}: run {again}")
    if "git" in entry and not fetch:
        return dict(pinned), None
    source = read_source(project, entry)
    now = source.state()
    if now == pinned:
        return now, source
    lines = _drift(pinned, now, source)
    raise ImageError(
        f"{name}: {what} has drifted from the state pinned in {IMAGES}:\n"
        + "\n".join(lines)
        + f"\nundo the change, or, if it is meant, run {again}"
    )


def _drift(pinned: Mapping[str, Any], now: Mapping[str, Any], source: Source) -> list[str]:
    old, new = pinned["files"], now["files"]
    kinds = {
        "changed": [path for path in old.keys() & new.keys() if old[path] != new[path]],
        "added": list(new.keys() - old.keys()),
        "missing": list(old.keys() - new.keys()),
    }
    lines = []
    for path in sorted({*pinned.get("executable", ())} ^ {*now.get("executable", ())}):
        lines.append(f"  may be executed in one of them alone: {path}")
    if pinned.get("revision") != now.get("revision"):
        lines.append(f"  commit: {now.get('revision')}, pinned is {pinned.get('revision')}")
    for kind, paths in kinds.items():
        for path in sorted(paths):
            place = source.places.get(path)
            lines.append(f"  {kind}: {path}" + (f" ({place})" if place else ""))
    if not lines:
        lines = [f"  the files are as pinned, `pinned.tree` is not their hash ({now['tree']})"]
    return lines


def _check_difference(
    name: str, rule: Mapping[str, Any], mine: Mapping[str, str], other: Mapping[str, str]
) -> None:
    differing = {path for path in mine.keys() | other.keys() if mine.get(path) != other.get(path)}
    meant = set(rule["files"])
    if differing == meant:
        return
    lines = [f"  differs as well: {path}" for path in sorted(differing - meant)]
    lines += [f"  does not differ: {path}" for path in sorted(meant - differing)]
    raise ImageError(
        f"{name}: must differ from {rule['image']} in {', '.join(sorted(meant))} alone:\n"
        + "\n".join(lines)
        + f"\nmend the sources, or `differs_from.files` of {name} in {IMAGES}"
    )


def archive(name: str, files: Mapping[str, bytes]) -> bytes:
    """Return the zip archive of files: the same bytes for the same files, everywhere.

    It runs with `python <archive>`, so the files need a `__main__.py` at their root. Raises
    ImageError when there is none; `name` is for its text.
    """
    if "__main__.py" not in files:
        raise ImageError(f"{name}: has no __main__.py, so Python cannot run its archive: add it")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for path in sorted(files):
            info = zipfile.ZipInfo(path, _STAMP)
            info.create_system = _UNIX
            info.external_attr = _MODE
            file.writestr(info, files[path])
    return buffer.getvalue()


def build(
    project: Path,
    name: str,
    entries: Entries,
    archive_path: Path,
    record_path: Path,
    code: str,
) -> dict[str, Any]:
    """Build an image from its pinned source: write the archive and its record, return the record.

    `entries` is as for `check`; `archive_path` and `record_path` are below the working folder of
    the workflow and recorded relative to it, `code` is the hash of the code that builds. Raises
    ImageError as `check` and `archive`, and when a dependency of the image is not installed.
    """
    entry = entries[name]
    if entry["runtime"] == "docker":
        raise ImageError(
            f"{name}: is built by Docker alone (its `runtime` in {IMAGES}): set `runtime: docker` "
            "in the configuration, or name another image there"
        )
    state, source = checked_source(project, name, entries)
    # From what was checked: a file that changes meanwhile is not built.
    data = archive(name, source.files)
    digest = sha256_bytes(data)
    record = {
        **described(name, entries, state, source),
        "runtime": "python-archive",
        "id": f"sha256:{digest}",
        "archive": _relative(archive_path),
        "tag": entry.get("tag", f"{name}:{digest[:12]}"),
        "build_arguments": {"variant": entry["variant"]} if "variant" in entry else {},
        "dependencies": {package: _version(name, package) for package in entry["dependencies"]},
        "dependency_files": {package: _installed(package) for package in entry["dependencies"]},
        "code": code,
    }
    write_bytes(archive_path, data)
    write_json(record_path, record)
    return record


def described(
    name: str, entries: Entries, state: Mapping[str, Any], source: Source
) -> dict[str, Any]:
    """Return what an image's record says whatever builds it: source, and what it differs from."""
    entry = entries[name]
    record = {
        "schema": SCHEMA,
        "name": name,
        "source": source_record(entry, source),
        "tree": state["tree"],
        "files": state["files"],
    }
    if "differs_from" in entry:
        base = entries[_base(name, entries)]["pinned"]
        record["differs_from"] = {**entry["differs_from"], "tree": base["tree"]}
    return record


def pin(project: Path, name: str) -> dict[str, Any]:
    """Write the present state of an image's source into config/images.yaml; return the state.

    Only the value of its `pinned` changes: comments and other images stay as they are. Raises
    ImageError for an unknown image, ConfigError when the file is not valid.
    """
    path = project / IMAGES
    images = load_images(path)
    _check_known(name, images)
    state = read_source(project, images[name]).state()
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
    for command, text in (
        ("pin", "write the present state of sources into config/images.yaml"),
        ("check", "compare the sources with what is pinned"),
    ):
        commands.add_parser(command, help=text).add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    try:
        images = load_images(project / IMAGES)
        names = options.names or list(images)
        for name in names:
            _check_known(name, images)
        for name in names:
            if options.command == "pin":
                state = pin(project, name)
                sys.stdout.write(f"{name}: pinned {len(state['files'])} files\n")
            else:
                check(project, name, images)
                sys.stdout.write(f"{name}: as pinned\n")
    except (ImageError, ConfigError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _check_known(name: str, images: Entries) -> None:
    if name not in images:
        listed = ", ".join(images)
        raise ImageError(f"no image {name!r}: {nearest(name, images)}{IMAGES} has {listed}")


def _version(image: str, package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImageError(
            f"{image}: dependency {package!r} is not installed: install requirements.lock "
            "(`pip install --require-hashes -r requirements.lock`)"
        ) from None


def _installed(package: str) -> str:
    """Return one SHA-256 over the files that a package was installed as.

    What an installer writes or changes itself (metadata, start scripts, compiled Python) is left
    out, so the same wheel gives the same hash on every machine.
    """
    hashes = {}
    for file in metadata.files(package) or ():
        parts = file.parts
        own = parts[0] == ".." or parts[0].endswith(".dist-info") or "__pycache__" in parts
        if not own:
            hashes[file.as_posix()] = sha256_file(Path(str(file.locate())))
    return sha256_tree(hashes)


def _relative(path: Path) -> str:
    whole = path.resolve()
    here = Path.cwd()
    if not whole.is_relative_to(here):
        raise ImageError(f"{path.name}: must be written below the workflow's working folder")
    return whole.relative_to(here).as_posix()


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
