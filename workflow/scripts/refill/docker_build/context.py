"""The context of a build: one tar whose bytes depend on the files in it and on nothing else."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from refill.docker_build.wheels import Wheel, unpack
from refill.image_sources import ImageError, Source

PACKAGES = "packages"


def context(name: str, source: Source, wheels: Sequence[Wheel], epoch: int) -> bytes:
    """Return the tar that the daemon builds an image from.

    Args:
        name: the image, for messages.
        source: the checked files of the image; its Dockerfile stands at their root.
        wheels: what is laid beside them, unpacked, in `packages/`.
        epoch: time of every file, in seconds since 1970.

    Raises:
        ImageError: no Dockerfile, or a file of the source stands where the packages go.
    """
    if "Dockerfile" not in source.files:
        raise ImageError(
            f"{name}: has no Dockerfile, so Docker cannot build it: add it at its root"
        )
    files = {path: (data, path in source.executable) for path, data in source.files.items()}
    inside = [path for path in files if path.split("/")[0] == PACKAGES]
    if wheels and inside:
        raise ImageError(
            f"{name}: {inside[0]}: stands where the packages of `dependencies` go: move it"
        )
    for wheel in wheels:
        for path, data, executable in unpack(wheel):
            files[f"{PACKAGES}/{path}"] = (data, executable)
    return _tar(files, epoch)


def _tar(files: Mapping[str, tuple[bytes, bool]], epoch: int) -> bytes:
    """Return a tar of files by path: (content, may be executed). Owned by root, folders first."""
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents} - {"."}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({*folders, *files}):
            info = tarfile.TarInfo(path)
            info.mtime = epoch
            if path in folders:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
                continue
            data, executable = files[path]
            info.size, info.mode = len(data), 0o755 if executable else 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
