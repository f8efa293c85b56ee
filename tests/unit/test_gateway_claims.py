"""Claims on rounds and proof, from synthetic rounds in the shape of real ones."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from refill.config import load_claims
from refill.config.claims import check
from refill.report.claims import claims_table
from test_report_rounds import EXPECTED, make_record

CLAIMS = load_claims()
PROOF = ("claims-and-tokens", "commits-and-releases", "publication-hit", "rewrite-restores",
         "old-generation", "after-publication-error")  # fmt: skip


def steady(profile: str, image: str, n: int, factor: float) -> dict[str, Any]:
    """A round whose trials hardly vary; `factor` is what the new image's cold cells take."""
    record = make_record(profile, image, n)
    for cell in record["cells"]:
        base = factor if image == "new" and cell["profile"] == "cold" else 1.0
        for trial in cell["trials"]:
            wobble = 1 + 0.001 * trial["trial"] + 0.001 * n
            trial["stats"] |= {"p50_ms": base * wobble, "p95_ms": 2 * base * wobble}
    return record


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return [
        steady(profile, image, n, 0.8 if profile == "on-main" else 1.0)
        for profile in ("on-main", "off-control")
        for image, n in (("old", 1), ("new", 1), ("new", 2), ("old", 2))
    ]


def row(
    records: list[dict[str, Any]], claim: str, proof: Any = None, expected: Any = EXPECTED
) -> Any:
    return claims_table([], CLAIMS, records, expected, proof).set_index("claim").loc[claim]


def cold(records: list[dict[str, Any]], image: str) -> list[dict[str, Any]]:
    return [
        cell
        for r in records
        if r["image"] == image and r["profile"] == "on-main"
        for cell in r["cells"]
        if cell["profile"] == "cold"
    ]


def test_every_published_figure_of_the_source_is_claimed() -> None:
    gateway = CLAIMS["experiments"]["gateway"]
    claimed = {
        (*c["cell"].values(), c["quantile"])
        for c in gateway["claims"]
        if c["statistic"] == "new_by_old"
    }
    published = {
        (f["profile"], f["cell"], f["operation"], f["engine"], f["clients"], q)
        for f in gateway["figures"]
        for q in ("p50_ms", "p95_ms")
        if q in f
    }
    assert claimed == published
    assert len([c for c in gateway["claims"] if c["statistic"] == "proof"]) == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cell": {"operation": "no-such"}}, "has no p50_ms of on-main, cold, no-such"),
        ({"quantile": "p95_ms", "cell": {"engine": "opensearch"}}, "has no p95_ms of on-main"),
    ],
)
def test_a_claim_on_a_figure_that_is_not_there_is_refused(
    change: dict[str, Any], words: str
) -> None:
    claims = copy.deepcopy(CLAIMS)
    claim = claims["experiments"]["gateway"]["claims"][0]
    claim["cell"] |= change.pop("cell", {})
    claim |= change
    assert any(words in problem for problem in check(claims))


def test_faster_is_reproduced_and_slower_contradicts(records: list[dict[str, Any]]) -> None:
    found = row(records, "G-cold-1-p50")
    assert found["verdict"] == "reproduced"
    assert found["published"] == "new 1.537 against old 1.943 ms, ratio 0.79"
    assert "ratio 0.80 [0." in found["measured"]
    assert found["measured"].endswith("(embedded engine)")
    assert found["ratio_low"] < 0.8 < found["ratio_high"]
    assert found["interval_level"] > 0.9
    assert found["scale"] == "test: 5 synthetic"
    assert "gateway over qdrant - embedded and Valkey 8.1.8" in found["engine"]
    for cell in cold(records, "new"):
        for trial in cell["trials"]:
            trial["stats"]["p50_ms"] *= 2
    found = row(records, "G-cold-1-p50")
    assert found["verdict"] == "contradicted"
    assert found["why"].startswith("slower: ")
    # No difference at all contradicts too: a gain was claimed.
    for cell in cold(records, "new"):
        for trial in cell["trials"]:
            trial["stats"]["p50_ms"] /= 1.6
    assert row(records, "G-cold-1-p50")["why"].startswith("equivalent: ")
    assert row(records, "G-cold-1-p50")["verdict"] == "contradicted"


def test_unchanged_is_reproduced_only_within_the_margin(records: list[dict[str, Any]]) -> None:
    assert row(records, "G-off-8-p95")["verdict"] == "reproduced"
    narrow = replace(EXPECTED, margin=0.001)
    assert row(records, "G-off-8-p95", expected=narrow)["verdict"] == "undecidable"
    assert row(records, "G-warm-terms-buckets-8-p95")["verdict"] == "reproduced"


def test_engines_that_were_not_measured_say_why(records: list[dict[str, Any]]) -> None:
    for claim in ("G-opensearch-1-control", "G-elasticsearch-8-native"):
        found = row(records, claim)
        assert found["verdict"] == "not measured"
        assert "is not in rounds.engines" in found["why"]


def with_native(records: list[dict[str, Any]], p50_ms: float, beside_new: float) -> Any:
    """Put cells of OpenSearch beside those of the gateway; give what was to be measured."""
    for record in records:
        for cell in [c for c in record["cells"] if c["profile"] == "cold"]:
            native = copy.deepcopy(cell) | {"engine": "opensearch"}
            for trial in native["trials"]:
                wobble = 1 + 0.001 * trial["trial"]
                factor = beside_new if record["image"] == "new" else 1.0
                trial["stats"] |= {"p50_ms": p50_ms * wobble * factor, "p95_ms": 1.0}
            record["cells"].append(native)
    return replace(EXPECTED, engines=["gateway", "opensearch"])


def test_a_native_engine_is_a_control_and_a_rival(records: list[dict[str, Any]]) -> None:
    expected = with_native(records, 0.3, 1.0)
    assert row(records, "G-opensearch-1-control", expected=expected)["verdict"] == "reproduced"
    rival = row(records, "G-opensearch-1-native", expected=expected)
    assert rival["verdict"] == "reproduced"
    assert "gateway (new) 0.80" in rival["measured"]
    assert rival["published_right"] == 0.498


def test_a_control_that_moved_as_much_leaves_the_gain_undecidable(
    records: list[dict[str, Any]],
) -> None:
    expected = with_native(records, 0.3, 0.75)
    found = row(records, "G-cold-1-p50", expected=expected)
    assert found["verdict"] == "undecidable"
    assert "opensearch moved by 1.33x" in found["why"]


def test_growth_of_the_log(records: list[dict[str, Any]]) -> None:
    found = row(records, "G-log-fills")
    assert found["verdict"] == "reproduced"
    assert found["measured"] == "9,000,000, 9,000,000 against 0, 0 bytes (embedded engine)"
    assert found["published"] == "9,103,721, 9,103,723 against 2,016, 2,016 bytes"
    old = [r for r in records if r["round"].startswith("on-main/old")]
    old[0]["profiles"][1]["aof"]["bytes"] = 0
    assert row(records, "G-log-fills")["verdict"] == "undecidable"
    old[1]["profiles"][1]["aof"]["bytes"] = 0
    assert row(records, "G-log-fills")["verdict"] == "contradicted"
    assert row(records, "G-log-fills-nothing")["verdict"] == "reproduced"
    assert row(records, "G-log-warm-old")["verdict"] == "reproduced"
    new = [r for r in records if r["round"].startswith("on-main/new")]
    new[0]["profiles"][1]["aof"]["bytes"] = 43
    assert row(records, "G-log-fills-nothing")["verdict"] == "undecidable"
    new[1]["profiles"][1]["aof"]["bytes"] = 43
    assert row(records, "G-log-fills-nothing")["verdict"] == "contradicted"
    new[1]["profiles"][1]["aof"] |= {"bytes": None, "rewritten": True}
    found = row(records, "G-log-fills-nothing")
    assert (found["verdict"], found["why"]) == (
        "not measured", "the log was rewritten in on-main/new-2",
    )  # fmt: skip
    assert row(records[1:], "G-log-warm-old")["why"] == "no record of on-main/old-1"


def test_wrong_responses(records: list[dict[str, Any]]) -> None:
    found = row(records, "G-wrong")
    assert (found["verdict"], found["measured"]) == ("reproduced", "0 of 80 (embedded engine)")
    assert found["published"] == "0 of 93,600"
    assert row(records[:7], "G-wrong")["why"] == "7 of 8 rounds are there"
    records[3]["ledger"]["counts"] = {"issued": 10, "ok": 7, "wrong": 2, "timeout": 1}
    found = row(records, "G-wrong")
    assert (found["verdict"], found["why"]) == ("contradicted", "not right: 2 wrong, 1 timeout")


def proof(**outcomes: str) -> dict[str, Any]:
    checks = [
        {"id": id_, "image": image, "server": server, "why": "",
         "outcome": outcomes.get(id_.replace("-", "_"), "pass") if image == "new" else "fail"}
        for id_ in PROOF
        for image in ("old", "new")
        for server in ("valkey-8.1", "redis-7")
    ]  # fmt: skip
    return {"scale": "full", "valid": True, "checks": checks}


def test_the_proof_decides_its_claims(records: list[dict[str, Any]]) -> None:
    found = row(records, "G-proof-publication")
    assert (found["verdict"], found["why"]) == ("not measured", "no proof")
    found = row(records, "G-proof-publication", proof())
    assert (found["verdict"], found["engine"]) == ("reproduced", "valkey-8.1")
    assert "embedded" not in found["measured"]
    for outcome, verdict in (("fail", "contradicted"), ("void", "undecidable"),
                             ("not run", "not measured")):  # fmt: skip
        spoilt = proof(publication_hit=outcome)
        assert row(records, "G-proof-publication", spoilt)["verdict"] == verdict
        assert row(records, "G-proof-claims", spoilt)["verdict"] == "reproduced"
    invalid = row(records, "G-proof-publication", {**proof(), "valid": False})
    assert invalid["verdict"] == "undecidable"
    assert "not valid" in invalid["why"]
    other = proof()
    other["checks"] = [c for c in other["checks"] if c["server"] != "valkey-8.1"]
    assert row(records, "G-proof-claims", other)["verdict"] == "not measured"


def test_without_anything_nothing_is_decided() -> None:
    table = claims_table([], CLAIMS)
    assert set(table["verdict"]) == {"not measured"}
    assert (table["why"].str.len() > 5).all()
    assert table["claim"].is_unique
