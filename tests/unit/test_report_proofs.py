"""The section and the table of the crash proof, from records in the shape of real ones."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refill.config import load_claims
from refill.report.page import render
from refill.report.proofs import proofs_table, write_table
from refill.report.proofs_view import evidence_text, section

STRANGE = "<script>alert(1)</script>"


def check(id_: str, image: str, server: str, outcome: str = "pass", **more: Any) -> dict[str, Any]:
    return {
        "id": id_, "title": f"title of {id_}", "source": "published", "image": image,
        "server": server, "outcome": outcome, "expected": "holds", "required": True, "needs": "",
        "evidence": {"fills": 1000, "property_holds": True}, "why": "", "seconds": 0.5, **more,
    }  # fmt: skip


def server(name: str, status: str = "run") -> dict[str, Any]:
    return {
        "name": name, "product": "Valkey", "version": "8.1.8", "binary": "0" * 64,
        "status": status, "scripts": "as built", "counts": name == "valkey-8.1",
    }  # fmt: skip


RECORD: dict[str, Any] = {
    "schema": "refill.proof/1", "id": "proofs/aof", "repeat": 1, "form": "full", "seed": 7,
    "scale": "default", "valid": True, "invalid": [], "outcome": "completed",
    "default_server": "valkey-8.1", "host": {},
    "runtime": "process",
    "images": {
        name: {"tag": f"a:{name}", "id": f"sha256:{name}"} for name in ("old", "new", "qdrant")
    },
    "servers": [server("valkey-8.1"), server("valkey-9"), server("redis-7", "not run: no redis")],
    "counts": {"valkey-8.1": {"pass": 3, "fail": 0}, "valkey-9": {"pass": 1, "not run": 1}},
    "checks": [
        check("publication-hit", "new", "valkey-8.1"),
        check("publication-hit", "old", "valkey-8.1", expected="grows"),
        check("publication-hit", "new", "valkey-9"),
        check("sync-counts", "new", "valkey-8.1"),
        check("sync-counts", "old", "valkey-8.1"),
        check("crash-server", "new", "valkey-8.1", evidence={"kills": 200, "seed": 7, "hits": 31}),
        check("power-cut-xfs-no", "new", "valkey-8.1", evidence={"acknowledged": 900, "lost": 600}),
        check("power-cut-xfs-always", "new", "valkey-8.1", "not run", evidence={}, why="no root"),
    ],
}  # fmt: skip


class Words(HTMLParser):
    """The words of one section, and a failure for a tag that is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts = 0
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if ("aria-labelledby", "proof") in attributes:
            self._inside = True
            self.open.clear()
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside:
            assert self.open.pop() == tag
            if not self.open:
                self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def page(*records: dict[str, Any]) -> Words:
    return Words(render([], {}, {}, load_claims(), proofs=list(records)))


def test_the_page_says_what_holds_in_words() -> None:
    text = page(RECORD).text
    assert "The proof holds on valkey-8.1." in text
    assert "Form full, seed 7." in text
    assert "What it does not show" in text
    assert "redis-7 – not run: no redis" in text
    for words in ("pass grows", "900 600 pass", "200 pass", "xfs always property – – not run"):
        assert words in text, words


@pytest.mark.parametrize("outcome", ["not run", "void"])
def test_the_first_sentence_says_when_nothing_could_see_a_sync(outcome: str) -> None:
    record = copy.deepcopy(RECORD)
    (one,) = [m for m in record["checks"] if (m["id"], m["image"]) == ("sync-counts", "old")]
    one.update(outcome=outcome, why="no strace")
    sentence = (
        "The proof holds on valkey-8.1, but no check here could see whether the server syncs."
    )
    assert sentence in page(record).text
    assert "rests on the server's settings" in page(record).text
    # A power cut sees it, too; its control alone does not.
    record["checks"].append(check("power-cut-ext4-no", "old", "valkey-8.1"))
    assert sentence in page(record).text
    record["checks"].append(check("power-cut-ext4-always", "old", "valkey-8.1"))
    assert "The proof holds on valkey-8.1." in page(record).text


def test_a_proof_that_does_not_hold_says_why_and_shows_strange_text_as_text() -> None:
    record = copy.deepcopy(RECORD)
    record.update(valid=False, invalid=[f"publication-hit (new): fail: {STRANGE}"])
    record["checks"][0].update(outcome="fail", why=STRANGE)
    made = page(record)
    assert "The proof does not hold." in made.text
    assert "alert(1)" in made.text
    assert made.scripts == 0
    (trouble, *_) = section([record])["troubles"]
    assert trouble == ("new on valkey-8.1: title of publication-hit", "fail", STRANGE)


def test_the_page_says_where_it_ran_and_on_which_qdrant() -> None:
    assert "as Qdrant is embedded here." in page(RECORD).text
    assert "containers" not in page(RECORD).text
    record = copy.deepcopy(RECORD)
    pulled = {"reference": "qdrant/qdrant:v1.19.2", "id": "sha256:q"}
    record.update(runtime="docker", images={**record["images"], "qdrant": pulled})
    text = page(record).text
    assert "run in containers of these images" in text
    assert "embedded" not in text
    assert "qdrant/qdrant:v1.19.2, sha256:q" in text


def test_without_a_proof_the_page_says_so() -> None:
    assert "Not measured" in page().text


def test_what_was_not_tried_is_not_run_and_no_pass() -> None:
    (row,) = [row for row in section([RECORD])["rows"] if row["id"] == "publication-hit"]
    words = [cell["word"] for cell in row["cells"]]
    # old and new on valkey-8.1, then on valkey-9, where old was not tried.
    assert words == ["pass", "pass", "not run", "pass"]


def test_the_table_has_a_row_for_each_check_and_each_missing_server(tmp_path: Path) -> None:
    table = proofs_table([RECORD])
    assert len(table) == len(RECORD["checks"]) + 1
    missing = table.iloc[-1]
    assert (missing["server"], missing["outcome"], missing["why"]) == (
        "redis-7", "not run", "no redis",
    )  # fmt: skip
    write_table([RECORD], tmp_path)
    read = pd.read_csv(tmp_path / "proofs.csv")
    assert list(read["check"]) == list(table["check"])
    assert json.loads(read["evidence"][0])["fills"] == 1000
    write_table([], tmp_path)
    assert pd.read_csv(tmp_path / "proofs.csv").empty


def test_evidence_is_text_with_figures() -> None:
    evidence = {"log_bytes": 12345, "same": True, "sizes": [1, 2], "a": {"b": 1000}}
    assert evidence_text(evidence) == "log bytes 12,345; same yes; sizes (1, 2); a (b 1,000)"
