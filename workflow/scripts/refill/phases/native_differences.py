"""In what a native engine is set up and asked otherwise than the gateway, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refill.engines import native
from refill.engines.native_index import as_text
from refill.oracle.documents import NATIVE_ALSO

_REASONS = {
    "refresh_interval": "nothing is refreshed by the clock while something is timed",
    "requests.cache.enable": "whether a shard may serve a repeated request from its cache is "
    "stated: it is not the same work",
    "queries.cache.enabled": "stated, not left to a default that versions change",
}
_LOAD = {
    "what": "after the last document: _forcemerge?max_num_segments=1, then _refresh",
    "why": "how many segments a load leaves is chance, and each is searched by itself; the gateway "
    "is measured when Qdrant's optimizers are at rest",
}
_OWN_INDEX = (
    {
        "what": "the index has a name of this round's own, which stands in path and _index",
        "why": "at a URL an index named like the gateway's can be somebody else's",
    },
    {
        "what": "_meta.refill: run and process that made the index",
        "why": "so that nothing else is deleted, and what a killed run left is known again",
    },
)
_ALSO = {
    "terminated_early": "an engine says so where it read counts from the index instead of going "
    "through documents; totals and buckets are checked all the same"
}


def differences(
    dialect: native.Dialect, settings: Mapping[str, Any], node: Mapping[str, str], at_url: bool
) -> dict[str, Any]:
    """Give in what an engine is asked otherwise than the gateway, and why, for its identity.

    Args:
        dialect: of the engine.
        settings: the `rounds.native` section.
        node: settings of the node, or variables of its image, that this engine alone is given.
        at_url: whether it runs at a URL.

    Returns:
        `requests`, `mapping`, `index` (its settings), `load`, `answers`, `node`: a list each of
        `what` and `why`; of requests and mapping an empty one says that they are the gateway's,
        byte for byte.
    """
    added = native.index_body({"settings": {}}, settings)["settings"]
    return {
        "requests": list(_OWN_INDEX[:1]) if at_url else [],
        "mapping": list(_OWN_INDEX[1:]) if at_url else [],
        "index": [
            {"what": f"index.{name}: {as_text(value)}", "why": _REASONS[name]}
            for name, value in added.items()
        ],
        "load": [_LOAD],
        "answers": [
            {"what": f"{name} ({some.words}) may stand beside a right answer", "why": _ALSO[name]}
            for name, some in NATIVE_ALSO.items()
        ],
        "node": [
            {"what": f"{name}: {value}", "why": dialect.reasons[name]}
            for name, value in node.items()
        ],
    }
