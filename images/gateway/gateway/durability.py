"""Whether a Valkey keeps what it acknowledges: what the whole coordination rests on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from gateway.valkey import Reply, ValkeyDownError, ValkeyError

log = logging.getLogger(__name__)

Ask = Callable[..., Awaitable[Reply]]

_KEEPS = {"appendonly": "yes", "appendfsync": "always"}
_POLICY = "maxmemory-policy"


async def check_durability(ask: Ask, required: bool) -> None:
    """Refuse a Valkey that can lose an acknowledged write, or throw the catalog out.

    A catalog that goes back in time serves stale responses, and gives numbers twice. Fills are the
    only keys that expire, so policies that evict such keys alone are as good as none.

    Args:
        ask: sends a command.
        required: False: say what is wrong in the log, and go on.

    Raises:
        ValkeyDownError: it is a replica, or required and not durable, or cannot be asked.
    """
    role = await ask("ROLE")
    if role[0] != b"master":
        raise ValkeyDownError(
            "valkey: this is a replica, which takes no writes and lags behind: use the primary"
        )
    wrong = await _wrong(ask)
    if not wrong:
        return
    if required:
        raise ValkeyDownError(
            f"valkey: {wrong}; correct it, or accept lost and stale answers with "
            "REFILL_GATEWAY_VALKEY_DURABILITY=unchecked"
        )
    log.warning("valkey: %s; not refused, as VALKEY_DURABILITY=unchecked", wrong)


async def _wrong(ask: Ask) -> str:
    found: dict[str, str] = {}
    for name in (*_KEEPS, _POLICY):
        try:
            reply = await ask("CONFIG", "GET", name)
        except ValkeyError as error:
            return f"whether it is durable cannot be seen: CONFIG GET {name}: {error}"
        found |= {
            key.decode(): value.decode() for key, value in zip(reply[::2], reply[1::2], strict=True)
        }
    for name, wanted in _KEEPS.items():
        if found.get(name) != wanted:
            return (
                f"{name} is {found.get(name)}, must be {wanted}: it would lose acknowledged writes"
            )
    policy = found.get(_POLICY, "")
    if policy != "noeviction" and not policy.startswith("volatile-"):
        return (
            f"{_POLICY} is {policy}, must be noeviction or one of volatile-*: it would evict the "
            "catalog with its indices"
        )
    return ""
