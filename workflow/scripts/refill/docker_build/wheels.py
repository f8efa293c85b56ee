"""The wheels of an image's dependencies: fetched by pip as the lock pins them, and unpacked.

They are for the Python and the processor of the base image, not for those of this process, so pip
downloads them and does not install them. A wheel is a zip whose files are laid out as they are
installed, so unpacking it is enough where no start scripts are wanted.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from refill.evidence.hashes import sha256_bytes, sha256_file
from refill.image_sources import ImageError
from refill.pip_download import TIMEOUT_S, PipError, pip_download
from refill.temporary import folder_beside

LOCK = "requirements.lock"
# Debian 12 has glibc 2.36; wheels are made for it or for an older one. PEP 600 (manylinux).
NEWEST_GLIBC_MINOR = 36
_OLDER = {"x86_64": ("manylinux2014", "manylinux2010", "manylinux1"), "aarch64": ("manylinux2014",)}
# As Docker names processors in places.
_PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Wheel:
    """One wheel: its package and version, the file, and the file's SHA-256."""

    package: str
    version: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class _Locked:
    package: str
    version: str
    hashes: tuple[str, ...]


def fetch(
    image: str,
    packages: Sequence[str],
    lock: Path,
    python: str,
    architecture: str,
    folder: Path,
    say: Callable[[str], object] = print,
) -> list[Wheel]:
    """Return the wheels of packages; what is not in `folder` yet is fetched by pip.

    Args:
        image: whose dependencies they are, for messages.
        packages: names as in the lock; nothing that they depend on is added.
        lock: the file that pins versions and hashes.
        python: version of the base image's Python, such as "3.11".
        architecture: of the daemon, such as "x86_64".
        folder: where wheels are kept, for every Python and processor in a folder of its own.
        say: told what is done.

    Raises:
        ImageError: a package is not in the lock, has no wheel for that Python and processor, or
            pip cannot fetch it.
    """
    if not packages:
        return []
    locked = [_locked(image, name, lock) for name in packages]
    kept = folder / f"cp{python.replace('.', '')}-{_processor(architecture)}"
    missing = [entry for entry in locked if _kept(kept, entry) is None]
    if missing:
        say(f"fetching wheels of {', '.join(f'{e.package} {e.version}' for e in missing)}")
        _download(image, missing, python, architecture, kept)
    found = []
    for entry in locked:
        path = _kept(kept, entry)
        if path is None:
            raise ImageError(
                f"{image}: pip left no wheel of {entry.package} {entry.version} that {LOCK} has"
            )
        found.append(Wheel(entry.package, entry.version, path, sha256_file(path)))
    return found


def locked_versions(image: str, packages: Sequence[str], lock: Path) -> dict[str, str]:
    """Return the versions of packages in the lock. Raises ImageError for one that is not there."""
    return {name: _locked(image, name, lock).version for name in packages}


def unpack(wheel: Wheel) -> Iterator[tuple[str, bytes, bool]]:
    """Yield a wheel's files as they are installed: (POSIX path, content, may be executed).

    Raises ImageError when the file has changed since it was fetched, or is no such zip.
    """
    data = wheel.path.read_bytes()
    if sha256_bytes(data) != wheel.sha256:
        raise ImageError(f"{wheel.path.name}: has changed while it was read: run again")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                path = _installed_path(member.filename)
                if path is None or member.is_dir():
                    continue
                yield path, archive.read(member), bool(member.external_attr >> 16 & 0o100)
    except zipfile.BadZipFile as error:
        raise ImageError(f"{wheel.path.name}: is no zip ({error}): delete it, run again") from error


def _installed_path(name: str) -> str | None:
    """Return where a member of a wheel is installed below site-packages; None: elsewhere."""
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/"):
        raise ImageError(f"a wheel holds {name!r}, which would leave its folder")
    if not parts[0].endswith(".data"):
        return name
    # PEP 427: <name>.data/purelib and platlib go to the same place; scripts and headers do not.
    return "/".join(parts[2:]) if parts[1:2] in (("purelib",), ("platlib",)) else None


def _locked(image: str, package: str, lock: Path) -> _Locked:
    text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", line)
        if found and _normal(found[1]) == _normal(package):
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
            return _Locked(package, found[2], hashes)
    raise ImageError(f"{image}: dependency {package!r} is not in {LOCK}: add it with `make lock`")


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _kept(folder: Path, entry: _Locked) -> Path | None:
    prefix = f"{_normal(entry.package).replace('-', '_')}-{entry.version}-"
    for path in sorted(folder.glob("*.whl")):
        same = path.name.lower().replace("-", "_").startswith(prefix.replace("-", "_"))
        if same and sha256_file(path) in entry.hashes:
            return path
    return None


def _download(
    image: str, missing: Sequence[_Locked], python: str, architecture: str, kept: Path
) -> None:
    processor = _processor(architecture)
    options = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    for platform in _platforms(processor):
        options += ["--platform", platform]
    wanted = [(f"{entry.package}=={entry.version}", entry.hashes) for entry in missing]
    with folder_beside(kept / "wheels") as folder:
        try:
            pip_download(wanted, folder, *options)
        except PipError as error:
            raise _unfetched(image, missing, f"Python {python} on {processor}", error) from None
        for wheel in sorted(folder.glob("*.whl")):
            # Whole or not at all, whatever else is fetching at the same time.
            wheel.replace(kept / wheel.name)


def _unfetched(image: str, missing: Sequence[_Locked], target: str, error: PipError) -> ImageError:
    names = ", ".join(f"{entry.package} {entry.version}" for entry in missing)
    if error.timed_out:
        return ImageError(
            f"{image}: pip did not fetch {names} in {TIMEOUT_S} s: check the network and pip"
        )
    said = "\n".join(error.said[-6:])
    return ImageError(
        f"{image}: pip cannot fetch wheels of {names} for {target} (`docker.python` must be "
        f"the version of the base image's Python, and the network must be there):\n{said}"
    )


def _processor(architecture: str) -> str:
    return _PROCESSORS.get(architecture, architecture)


def _platforms(processor: str) -> list[str]:
    """Return the platform tags of wheels that run on the base, the newest glibc first."""
    oldest = 5 if processor == "x86_64" else 17
    newer = [f"manylinux_2_{minor}" for minor in range(NEWEST_GLIBC_MINOR, oldest - 1, -1)]
    return [f"{tag}_{processor}" for tag in (*newer, *_OLDER.get(processor, ()), "linux")]
