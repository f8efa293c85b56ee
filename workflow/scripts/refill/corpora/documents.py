"""A prepared corpus of documents: its table, its mapping, and the bodies that load it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from refill.corpora.errors import CorpusError
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json

SCHEMA = "refill.documents/1"
RECORD, TABLE = "corpus.json", "documents.parquet"
ID = "_id"
REMEDY = "delete the corpus's folder and run the workflow again"

# Field types of Elasticsearch, and the columns that hold them.
TYPES: Mapping[str, pa.DataType] = {
    "keyword": pa.string(),
    "integer": pa.int64(),
    "double": pa.float64(),
    "date": pa.timestamp("ms", tz="UTC"),
}


class Documents:
    """Documents in the order in which they are loaded; row i has the id of row i.

    Args:
        table: column `_id` (text), then one column a field, of the type in `TYPES`; null where a
            document does not have the field.
        fields: Elasticsearch's type of each field.
        record: the content of corpus.json.

    Attributes:
        count: how many there are.
        ids: `_id` of each row.
        fields: as given.
        record: as given.
    """

    def __init__(
        self, table: pa.Table, fields: Mapping[str, str], record: Mapping[str, Any] | None = None
    ) -> None:
        self._table = table
        self.fields = dict(fields)
        self.record = dict(record or {})
        self.count: int = table.num_rows
        self.ids = [str(id_) for id_ in table.column(ID).to_pylist()]

    @classmethod
    def open(cls, folder: Path, verify: bool = False) -> Documents:
        """Open a corpus's folder; the table's size is checked, and with `verify` its SHA-256.

        Raises:
            CorpusError: the table is missing, or is not what corpus.json says.
            RecordError: no corpus.json, or another schema's.
        """
        record = read_json(folder / RECORD, SCHEMA)
        path, said = folder / TABLE, record["files"][TABLE]
        size = path.stat().st_size if path.is_file() else None
        if size != said["bytes"]:
            found = "no such file" if size is None else f"{size} bytes"
            problem = f"{found}, not {said['bytes']} bytes"
            raise CorpusError(record["name"], TABLE, "path", problem, REMEDY)
        if verify and (got := sha256_file(path)) != said["sha256"]:
            problem = f"its SHA-256 is {got}, not {said['sha256']} as when it was made"
            raise CorpusError(record["name"], TABLE, "path", problem, REMEDY)
        return cls(pq.read_table(path), record["fields"], record)

    @property
    def mapping(self) -> dict[str, Any]:
        """The `mappings` of an index for them."""
        properties = {name: {"type": kind} for name, kind in self.fields.items()}
        return {"dynamic": "strict", "properties": properties}

    def index_body(self) -> dict[str, Any]:
        """Give the body of the request that creates an index for them.

        One shard, so that a native engine's terms aggregation is exact, and no replica.
        """
        settings = {"number_of_shards": 1, "number_of_replicas": 0}
        return {"settings": settings, "mappings": self.mapping}

    def frame(self) -> pd.DataFrame:
        """Give the table as a data frame: missing numbers are NaN, missing text is None."""
        frame: pd.DataFrame = self._table.to_pandas()
        return frame

    @cached_property
    def sources(self) -> list[dict[str, Any]]:
        """Each row as the JSON object that is loaded; a missing value is a key that is not there.

        To be read only: it is shared.
        """
        rows = self._table.select(list(self.fields)).to_pylist()
        return [
            {name: _json(value) for name, value in row.items() if value is not None} for row in rows
        ]

    def bulk(self, index: str, batch: int = 1000) -> Iterator[bytes]:
        """Give the bodies of the `_bulk` requests that load all of them, `batch` rows each."""
        for first in range(0, self.count, batch):
            lines = []
            for row in range(first, min(first + batch, self.count)):
                lines.append(orjson.dumps({"index": {"_index": index, "_id": self.ids[row]}}))
                lines.append(orjson.dumps(self.sources[row]))
            yield b"\n".join([*lines, b""])


def _json(value: Any) -> Any:
    return f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else value
