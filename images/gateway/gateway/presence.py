"""What was seen of indices, to notice when Valkey or Qdrant has less than it had.

Valkey's catalog and Qdrant's collections are two data sets. Each can be put back to an earlier
state, or lose something, without the other: a restart without the last writes, a backup, another
server at the same address. The state that was seen of an index never goes back by itself, so an
earlier one tells; and the highest sequence number in Qdrant is always below Valkey's counter, as a
number is given out, durably, before it is written.
"""

from __future__ import annotations

from hashlib import blake2b

from gateway.errors import UnavailableError
from gateway.qdrant import CollectionGoneError, Qdrant

# More indices than there may be: only then is something forgotten.
_REMEMBERED = 200_000
# What to do about it, behind what is wrong.
_BACK = (
    "Valkey's data set is older than what was acknowledged (a restart without its last writes, or "
    "an old backup). Restore the newer one; or give up all cached responses with `recover "
    "--new-epoch`, which also corrects the counters, and restart the gateways"
)


class Presence:
    """Remembers the newest state of each index, and which collections are missing.

    Attributes:
        rolled_back: what showed that Valkey went back in time, and what to do; empty: nothing did.
        gone: by index, the incarnation whose collection is not in Qdrant.
    """

    def __init__(self, namespace: str, qdrant: Qdrant) -> None:
        self._namespace = namespace
        self._qdrant = qdrant
        self._newest: dict[str, tuple[str, int, int]] = {}
        self._heads: dict[str, bytes] = {}
        self.rolled_back = ""
        self.gone: dict[str, str] = {}

    # Valkey's side

    def of(
        self, index: str, incarnation: str, generation: int, mapping_version: int
    ) -> UnavailableError | None:
        """Take note of a state that Valkey gave; an error when it must not be gone by."""
        newest = self._newest.get(index)
        if newest is not None and newest[0] == incarnation:
            if generation < newest[1] or mapping_version < newest[2]:
                return self.went_back(
                    f"index [{index}] is at generation {generation} and mapping {mapping_version}, "
                    f"was at {newest[1]} and {newest[2]}"
                )
        elif len(self._newest) >= _REMEMBERED:
            self._newest.clear()
        found = (incarnation, generation, mapping_version)
        if found != newest:
            self._newest[index] = found
            self._heads.pop(index, None)
        if self.gone and self.gone.get(index) == incarnation:
            return self.lost(index)
        return None

    def advanced(self, index: str, incarnation: str, generation: int) -> None:
        """Take note of the generation after a write of this gateway."""
        newest = self._newest.get(index)
        known = newest is not None and newest[0] == incarnation
        version = newest[2] if known and newest is not None else 0
        if not known or newest is None or generation > newest[1]:
            self._newest[index] = (incarnation, generation, version)
            self._heads.pop(index, None)

    def of_head(self, index: str, head: bytes) -> UnavailableError | None:
        """As `of`, for the head of an entry that Valkey's lookup has found valid."""
        if self._heads.get(index) == head and not self.gone:
            return None
        _, incarnation, generation, _ = head.decode().split(" ", 3)
        newest = self._newest.get(index)
        version = newest[2] if newest is not None and newest[0] == incarnation else 0
        refusal = self.of(index, incarnation, int(generation), version)
        if refusal is None:
            if len(self._heads) >= _REMEMBERED:
                self._heads.clear()
            self._heads[index] = head
        return refusal

    def went_back(self, why: str) -> UnavailableError:
        """Take note of a sign that Valkey's data set is an older one."""
        self.rolled_back = f"{why}: {_BACK}"
        return UnavailableError(self.rolled_back)

    # Qdrant's side

    def prefix(self, index: str) -> str:
        """How the names of an index's collections begin, whatever the incarnation."""
        digest = blake2b(index.encode(), digest_size=6).hexdigest()
        return f"{self._namespace}-{digest}-"

    async def collections_of(self, index: str) -> set[str]:
        """The collections in Qdrant that were made for an index of this name."""
        prefix = self.prefix(index)
        return {name for name in await self._qdrant.collections() if name.startswith(prefix)}

    async def confirm_missing(self, index: str, collections: set[str]) -> None:
        """See whether an index that is not in the catalog never was.

        Args:
            collections: those that were there before the catalog said that there is no such index,
                and no claim of another one. What is still there belongs to no create and no delete.

        Raises:
            UnavailableError: one of them has documents: the catalog has lost the index. (One
                without is what a create that was given up has left.)
        """
        for name in collections & await self.collections_of(index):
            await self.refuse_documents(index, name)

    async def refuse_documents(self, index: str, collection: str) -> None:
        """Raise when a collection that belongs to no index has documents: as `confirm_missing`."""
        if await self.documents(collection):
            raise UnavailableError(
                f"index [{index}] is not in Valkey's catalog, but its collection [{collection}] "
                "with its documents is in Qdrant: Valkey has lost keys, or holds an older data set."
                " Restore it; or give these documents up with `recover --drop-orphans`"
            )

    async def documents(self, collection: str) -> int:
        """How many documents a collection has; 0 also when it is gone."""
        try:
            return await self._qdrant.count(collection, {})
        except CollectionGoneError:
            return 0

    def lose(self, index: str, incarnation: str) -> UnavailableError:
        """Take note that an index's collection is not in Qdrant."""
        self.gone[index] = incarnation
        return self.lost(index)

    def lost(self, index: str) -> UnavailableError:
        """The error for an index whose collection is gone."""
        return UnavailableError(
            f"index [{index}] is in the catalog, but its collection [{self.gone[index]}] is not in "
            "Qdrant: Qdrant has lost its data, or is the wrong one. Restore it, or delete the index"
        )

    async def look_for_gone(self) -> None:
        """Forget about collections that are there again."""
        if self.gone:
            names = set(await self._qdrant.collections())
            self.gone = {i: name for i, name in self.gone.items() if name not in names}
