"""Validation of an RO-Crate with roc-validator, offline: its JSON-LD contexts are given here."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests_cache import CachedSession
from rocrate_validator import services
from urllib3 import HTTPResponse

# That of the package rocrate 0.13.0 (CC0), without its description of itself.
RO_CRATE = Path(__file__).parent / "data/ro-crate-1.1-context.json"
TERMS = "https://w3id.org/ro/terms/workflow-run"
CONTEXTS = {
    "https://w3id.org/ro/crate/1.1/context": RO_CRATE.read_text(),
    f"{TERMS}/context": json.dumps(
        {"@context": {name: f"{TERMS}#{name}" for name in ("md5", "sha1", "sha256", "sha512")}}
    ),
}
# What the validator asks with; the cache answers the same request only.
ACCEPT = {"Accept": "application/ld+json, application/json, */*;q=0.1"}


class _Given(HTTPAdapter):
    """Answers from texts, so that a session's cache holds them without a network."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__()
        self.texts = texts

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        raw = HTTPResponse(
            io.BytesIO(self.texts[request.url].encode()),
            headers={"Content-Type": "application/ld+json"},
            status=200,
            preload_content=False,
            request_url=request.url,
        )
        return self.build_response(request, raw)


def make_cache(path: Path) -> Path:
    """Make the validator's HTTP cache at `path` with the contexts; return the path."""
    with CachedSession(str(path), backend="sqlite", expire_after=-1) as session:
        session.mount("https://", _Given(CONTEXTS))
        for url in CONTEXTS:
            session.get(url, headers=ACCEPT)
    return path


def problems(crate: Path, cache: Path) -> list[str]:
    """Return what breaks the profile workflow-run-crate 0.5 in a crate (folder or ZIP file)."""
    settings = services.ValidationSettings(
        rocrate_uri=str(crate),
        profile_identifier="workflow-run-crate-0.5",
        requirement_severity="REQUIRED",
        offline=True,
        cache_path=cache,
    )
    result = services.validate(settings)
    assert result.passed() == (not result.get_issues())
    return [str(issue.message) for issue in result.get_issues()]
