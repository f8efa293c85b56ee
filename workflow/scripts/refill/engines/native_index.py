"""What a native engine made of the index that it was asked for.

An engine may give an index other settings than were asked for: a cluster's templates do. So both
are read back after the load and compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refill.engines import native
from refill.evidence.json_difference import unequal

# What an engine itself writes beside the settings that an index was asked to have: when and by
# which version it was made, its names, and where a version may put it.
_OWN = re.compile(
    r"index\.(creation_date|provided_name|uuid|version\.\w+"
    r"|routing\.allocation\.include\._tier_preference)"
)


# What OpenSearch writes there when nobody asked for another kind.
_USUAL = {"index.replication.type": "DOCUMENT"}


@dataclass(frozen=True)
class Stated:
    """What an engine says of an index: settings by their full names as texts, and its mapping."""

    settings: Mapping[str, str]
    mapping: Mapping[str, Any]

    @classmethod
    def read(cls, api: native.Api, index: str) -> Stated:
        """Ask an engine.

        Raises:
            EngineError: it does not answer, or in another form.
        """
        found = api.stated(index)
        mapping = {key: value for key, value in found["mappings"].items() if key != "_meta"}
        return cls({k: as_text(v) for k, v in sorted(found["settings"].items())}, mapping)

    def differing(self, body: Mapping[str, Any]) -> list[str]:
        """Say where an index is not what it was asked to be; `body` is that of its creation."""
        found = [
            f"{name} is {self.settings.get(name, 'not there')}, asked for was {value}"
            for name, value in asked_settings(body).items()
            if self.settings.get(name) != value
        ]
        return found + [
            f"the mapping's {where.lstrip('.')} is {says}, asked for was {gives}"
            for where, says, gives in unequal(self.mapping, body["mappings"])
        ]

    def more(self, body: Mapping[str, Any]) -> dict[str, str]:
        """Give the settings that nobody asked for, without what every engine writes itself."""
        asked = asked_settings(body)
        return {
            name: value
            for name, value in self.settings.items()
            if name not in asked and not _OWN.fullmatch(name) and _USUAL.get(name) != value
        }

    def plain(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Give what a record says: settings that were asked for, others, and the mapping."""
        settings = {name: self.settings[name] for name in asked_settings(body)}
        return {"settings": settings, "more": self.more(body), "mapping": dict(self.mapping)}


def asked_settings(body: Mapping[str, Any]) -> dict[str, str]:
    """Give the settings that an index is created with, by their full names, as texts."""
    return {f"index.{name}": as_text(value) for name, value in sorted(body["settings"].items())}


def as_text(value: Any) -> str:
    """Give a value of a setting as an engine writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
