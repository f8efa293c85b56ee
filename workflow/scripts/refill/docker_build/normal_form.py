"""One form for an image whatever its build left variable, so that one source gives one ID.

Docker names an image by the SHA-256 of its configuration, which holds the time of the build, the
containers and the daemon that built it, and the hashes of its layers, in which files that a build
touches have the time of the build. Here a saved image is written anew: times are clamped to the
source's, and what depends on the builder is left out. The layers of the image that it builds on
stay as they are.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from refill.image_sources import ImageError

# What of a configuration is the image's own; all else tells of its build.
_KEPT = ("architecture", "os", "os.version", "os.features", "variant", "author", "config")
# The image's parent and a container's names, of no meaning outside of the daemon that built it.
_BUILDERS = ("Image", "Hostname", "Domainname", "AttachStdin", "AttachStdout", "AttachStderr")
_TIMES = ("mtime", "atime", "ctime")
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Base:
    """What an image is built on.

    Attributes:
        layers: the uncompressed hashes ("sha256:...") of its layers, lowest first.
        steps: how many steps its history has.
    """

    layers: tuple[str, ...] = ()
    steps: int = 0


def normalise(saved: Path, written: Path, base: Base, epoch: int) -> str:
    """Write a saved image anew in its one form; return the SHA-256 of its configuration.

    Args:
        saved: what `docker save` gives for one image: the archive of Docker 1.10 and later, or the
            OCI layout of Docker 25 and later, which holds that archive's `manifest.json` too.
        written: the archive to write, which every version of `docker load` takes.
        base: what it is built on, which stays as it is.
        epoch: time in seconds since 1970 that no own file is younger than.

    Raises:
        ImageError: it is not one image, not built on those layers, or has a layer that is no tar.
    """
    with tarfile.open(saved) as archive, tarfile.open(written, "w") as new:
        manifest = _one_image(archive, saved)
        config = json.loads(_read(archive, manifest["Config"]))
        layers, below = config["rootfs"]["diff_ids"], len(base.layers)
        if tuple(layers[:below]) != base.layers:
            raise ImageError("the image is not built on the layers of its base: build it again")
        names = []
        for place, path in enumerate(manifest["Layers"]):
            with tempfile.TemporaryFile(dir=written.parent) as file:
                digest = _layer(_member(archive, path), file, epoch if place >= below else None)
                if place < below and digest != layers[place]:
                    raise ImageError(f"layer {place} is {digest}, the image says {layers[place]}")
                layers[place] = digest
                names.append(f"{place:03d}-{digest.removeprefix('sha256:')}/layer.tar")
                _add(new, names[-1], file)
        text = _canonical(_configuration(config, layers, base.steps, epoch))
        identity = hashlib.sha256(text).hexdigest()
        _add(new, f"{identity}.json", io.BytesIO(text))
        entry = {"Config": f"{identity}.json", "RepoTags": None, "Layers": names}
        _add(new, "manifest.json", io.BytesIO(_canonical([entry])))
    return f"sha256:{identity}"


def _one_image(archive: tarfile.TarFile, saved: Path) -> dict[str, Any]:
    images = json.loads(_read(archive, "manifest.json"))
    if len(images) != 1:
        raise ImageError(f"{saved.name}: holds {len(images)} images, one was saved")
    manifest: dict[str, Any] = images[0]
    return manifest


def _read(archive: tarfile.TarFile, path: str) -> bytes:
    return _member(archive, path).read()


def _member(archive: tarfile.TarFile, path: str) -> IO[bytes]:
    try:
        # A layer that stands in an image twice is saved as a link the second time.
        stream = archive.extractfile(path)
    except KeyError:
        stream = None
    if stream is None:
        raise ImageError(f"the daemon's archive of the image has no {path}")
    return stream


def _layer(stream: IO[bytes], file: IO[bytes], epoch: int | None) -> str:
    """Write a layer uncompressed, with clamped times if `epoch` is given; return its hash."""
    begin = stream.read(4)
    stream.seek(0)
    if begin == _ZSTD:
        raise ImageError("a layer of the image is compressed with zstd, which cannot be read here")
    with gzip.open(stream) if begin[:2] == _GZIP else nullcontext(stream) as plain:
        if epoch is not None:
            _clamp(plain, file, epoch)
        else:
            shutil.copyfileobj(plain, file, 1 << 20)
    file.seek(0)
    return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"  # type: ignore[arg-type]


def _clamp(stream: Any, file: IO[bytes], epoch: int) -> None:
    """Copy a layer's tar: no file is younger than `epoch`, and no names of users are kept.

    The order of its members stays: Docker sorts them, and a hard link stands behind its file.
    """
    try:
        with (
            tarfile.open(fileobj=stream, mode="r|") as old,
            tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as new,
        ):
            for member in old:
                data = old.extractfile(member) if member.isreg() else None
                member.mtime = min(int(member.mtime), epoch)
                member.uname = member.gname = ""
                # Extended attributes, such as capabilities, stand in the same headers, and stay.
                member.pax_headers = {
                    key: value for key, value in member.pax_headers.items() if key not in _TIMES
                }
                new.addfile(member, data)
    except tarfile.TarError as error:
        raise ImageError(f"a layer of the image cannot be read: {error}") from error


def _configuration(
    config: Mapping[str, Any], layers: Sequence[str], base_steps: int, epoch: int
) -> dict[str, Any]:
    made = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kept = {key: config[key] for key in _KEPT if key in config}
    own = {key: value for key, value in kept["config"].items() if key not in _BUILDERS}
    history = config.get("history", [])
    # The steps of the base have its times, which are the same in every build.
    own_steps = [{**step, "created": made} for step in history[base_steps:]]
    return {
        **kept,
        "config": own,
        "created": made,
        "history": [*history[:base_steps], *own_steps],
        "rootfs": {"type": "layers", "diff_ids": list(layers)},
    }


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = file.seek(0, io.SEEK_END), 0o644
    file.seek(0)
    archive.addfile(info, file)
