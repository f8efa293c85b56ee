"""Configuration: shipped files are valid, and each mistake is named with its file, key and cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from refill.config import (
    PROJECT,
    ConfigError,
    load,
    load_claims,
    load_images,
    load_optimizers,
    schemas,
    validate,
)
from refill.workflow import Plans

BASE = PROJECT / "config/config.yaml"
# What a YAML alias makes that stands in what it names.
NESTED: list[Any] = []
NESTED.append(NESTED)


def problems(override: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(BASE, [override])
    return caught.value.problems


@pytest.mark.parametrize("scale", ["config", "smoke", "paper"])
def test_every_shipped_configuration_is_valid(scale: str) -> None:
    files = [] if scale == "config" else [PROJECT / f"config/{scale}.yaml"]
    config = load(BASE, files)
    assert config["scale"] == ("default" if scale == "config" else scale)


def test_every_shipped_catalog_is_valid() -> None:
    published = ["A1", "A2", "A3", "B1", "B2", "B3", "B4", "C1", "C2", "D1", "D2", "E1", "E2"]
    assert list(load_optimizers()) == published
    assert load_optimizers()["B3"]["id"] == "B3"
    assert load_images()["qdrant-edge"]["tree"] == "images/qdrant-edge"
    assert "optimizers" in load_claims()["experiments"]


def test_files_are_merged_key_by_key_and_the_last_wins(tmp_path: Path) -> None:
    second = tmp_path / "second.yaml"
    second.write_text("optimizers: {draining: {limit_s: 7}, runs: [C2]}\n")
    config = load(BASE, [second, {"corpus": {"points": 5000}}])
    base = yaml.safe_load(BASE.read_text())
    assert config["optimizers"]["draining"] == {**base["optimizers"]["draining"], "limit_s": 7}
    assert config["optimizers"]["runs"] == ["C2"]
    assert config["corpus"]["points"] == 5000
    assert config["corpus"]["name"] == base["corpus"]["name"]


def test_null_takes_an_override_and_a_default_back() -> None:
    config = load(
        BASE,
        [{"optimizers": {"defaults": {"indexing_threshold": None}, "overrides": {"B2": None}}}],
    )
    assert config["optimizers"]["defaults"] == {"indexing_threshold": None}
    assert config["optimizers"]["overrides"]["B2"] is None


def test_defaults_are_filled_only_where_the_parent_is() -> None:
    config = yaml.safe_load(BASE.read_text())
    del config["optimizers"]["draining"]["limit_s"], config["optimizers"]["repeats"]
    filled = validate(config)
    assert filled["optimizers"]["draining"]["limit_s"] == 180
    assert filled["optimizers"]["repeats"] == 1
    assert filled["corpus"]["seed"] == 1
    assert "limit_s" not in config["optimizers"]["draining"]
    del config["optimizers"]["draining"]
    with pytest.raises(ConfigError, match=r"optimizers\.draining: is missing: add it"):
        validate(config)


def test_every_default_is_valid_itself() -> None:
    config = yaml.safe_load(BASE.read_text())
    parts = ("upload", "search", "draining", "steady")
    config["optimizers"] = {"runs": ["A1"]} | {part: {} for part in parts}
    filled = validate(config)
    assert filled["optimizers"]["search"] == {"limit": 10, "timeout_s": 10}
    assert validate(filled) == filled


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({"optimizers": {"drainign": {}}}, "optimizers.drainign: unknown key: did you mean 'drain"),
        ({"corpus": {"poinst": 1}}, "corpus.poinst: unknown key: did you mean 'points'?"),
        ({"xyzzy": 1}, "xyzzy: unknown key: keys here: scale, corpus, corpora, qdrant"),
        (
            {"optimizers": {"draining": {"open_per_s": -1}}},
            "optimizers.draining.open_per_s: must be > 0, is -1",
        ),
        ({"optimizers": {"draining": {"open_window_s": 0}}}, "open_window_s: must be > 0, is 0"),
        ({"optimizers": {"steady": {"passes": 1.5}}}, "must be a whole number, is 1.5"),
        ({"optimizers": {"upload": {"batch": True}}}, "must be a whole number, is true"),
        ({"optimizers": {"upload": None}}, "optimizers.upload: must be a block of keys, is null"),
        ({"optimizers": {"runs": []}}, "optimizers.runs: must have at least 1 item"),
        ({"optimizers": {"runs": ["A1", "A1"]}}, "optimizers.runs: must not name anything twice"),
        ({"optimizers": {"search": {"limit": 101}}}, "search.limit: must be <= 100, is 101"),
        ({"scale": 5}, "scale: must be text, is 5: put it in quotes"),
        ({"scale": "my/scale"}, "scale: must match the pattern"),
        (
            {"corpus": {"name": "glov-50d"}},
            "corpus.name: no corpus 'glov-50d': did you mean 'glove-50d'?",
        ),
        ({"corpus": {"points": 5}}, "optimizers.search.limit: must be <= corpus.points (5), is 10"),
        (
            {"optimizers": {"runs": ["A1", "a2"]}},
            "optimizers.runs[1]: no configuration 'a2': did you mean 'A2'?",
        ),
        (
            {"optimizers": {"overrides": {"Z9": {}}}},
            "optimizers.overrides.Z9: no configuration 'Z9': config/optimizers.yaml has A1",
        ),
        (
            {"optimizers": {"defaults": {"indexing_treshold": 5}}},
            "indexing_treshold: unknown key: did you mean 'indexing_threshold'?",
        ),
        (
            {"optimizers": {"defaults": {"max_segment_size": {"per_core": 2}}}},
            "max_segment_size: must be one of: a whole number of KB; {share: X}",
        ),
        (
            {"optimizers": {"defaults": {"max_segment_size": {"share": 0}}}},
            "max_segment_size.share: must be > 0, is 0",
        ),
        (
            {"optimizers": {"overrides": {"D2": {"vacuum_min_vector_number": 99}}}},
            "overrides.D2.vacuum_min_vector_number: must be >= 100, is 99",
        ),
        ({"qdrant": {"url": "http://x:1"}}, "needs exactly one of image, binary and url, has im"),
        ({"qdrant": {"image": None}}, "needs exactly one of image, binary and url, has none"),
        ({"qdrant": {"image": None, "binary": "./no-such"}}, "no program that can be started"),
        ({"qdrant": {"image": None, "binary": "x" * 300}}, "no program that can be started"),
        (
            {"qdrant": {"image": "qdrant-egde"}},
            "qdrant.image: no image 'qdrant-egde': did you mean 'qdrant-edge'?",
        ),
        (
            {"qdrant": {"image": None, "url": "ftp://x"}},
            "qdrant.url: must be an http or https address",
        ),
        ({"qdrant": {"image": None, "url": "http://x:99999"}}, "qdrant.url: is no address"),
        ({"qdrant": {"image": None, "url": "http://x:1\n2"}}, "url: must be of printable ASCII"),
        ({"qdrant": {"image": None, "url": "http://\u00e9:1"}}, "url: must be of printable ASCII"),
        ({"qdrant": {"image": None, "binary": "/tmp"}}, "qdrant.binary: '/tmp' is no program"),
        ({"qdrant": {"image": None, "binary": "a\0b"}}, "qdrant.binary: 'a\\x00b' is no program"),
        ({"rounds": {"valkey": {"binary": "/tmp"}}}, "rounds.valkey.binary: '/tmp' is no program"),
        (
            {"qdrant": {"image": "gateway-old"}},
            "qdrant.image: gateway-old has `api: elasticsearch` in config/images.yaml, this one "
            "must have `api: qdrant`: take one of qdrant-edge",
        ),
        (
            {"rounds": {"images": {"old": "qdrant-edge"}}},
            "rounds.images.old: qdrant-edge has `api: qdrant` in config/images.yaml, this one must "
            "have `api: elasticsearch`: take one of gateway-old, gateway-new",
        ),
        (
            {"rounds": {"images": {"old": "gateway-new", "new": "gateway-old"}}},
            "rounds.images.old: is gateway-new, which differs_from gateway-old in "
            "config/images.yaml: the two are swapped, exchange old and new",
        ),
        (
            {"proof": {"images": {"old": "gateway-new", "new": "gateway-old"}}},
            "proof.images.old: is gateway-new, which differs_from gateway-old",
        ),
        ({"proof": {"images": {"qdrant": "gateway-old"}}}, "proof.images.qdrant: gateway-old has"),
        ({"qdrant": {"api_key_env": "two words"}}, "qdrant.api_key_env: must match the pattern"),
        (
            {"optimizers": {"draining": {"open_per_s": 0.2}}},
            "draining.open_per_s: times optimizers.draining.open_window_s (4) must be >= 1",
        ),
        (
            {"optimizers": {"draining": {"poll_s": 30}}},
            "draining.limit_s: must be above optimizers.draining.poll_s (30) times idle_polls (6)",
        ),
        (
            {"optimizers": {"draining": {"limit_s": float("nan")}}},
            "must be a finite number, is nan",
        ),
        ({"corpora": NESTED}, "corpora: is nested in itself, or too deep: write it out"),
        ({"corpus": {"points": float("inf")}}, "corpus.points: must be a finite number, is inf"),
        ({"optimizers": {"repeats": 2.0}}, "optimizers.repeats: must be a whole number, is 2.0"),
        ({"optimizers": {7: 1}}, "optimizers: the key 7 must be text: put it in quotes"),
        ({"optimizers": {"upload": {"clients": 257}}}, "clients: must be <= 256, is 257"),
        ({"qdrant": {"cpus": 5000}}, "qdrant.cpus: must be <= 4096, is 5000"),
        ({"optimizers": {"search": {"timeout_s": 1e9}}}, "timeout_s: must be <= 86400"),
        ({"optimizers": {"draining": {"poll_s": 61}}}, "draining.poll_s: must be <= 60, is 61"),
        ({"optimizers": {"steady": {"open_per_s": 1e7}}}, "open_per_s: must be <= 1000000"),
        ({"corpus": {"points": 2**53 + 1}}, "corpus.points: must be <= 9007199254740992"),
    ],
)
def test_a_mistake_is_named_with_its_file_key_and_cure(
    override: dict[str, Any], expected: str
) -> None:
    found = problems(override)
    assert len(found) == 1
    assert found[0].startswith(("config/config.yaml: ", "command line (--config): "))
    assert expected in found[0]


CORPUS = {"kind": "npy", "path": "x.npy", "sha256": None, "distance": "Dot"}


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        ({**CORPUS, "kind": "nyp"}, "corpora.x.kind: is 'nyp': did you mean 'npy'? use `kind` pa"),
        (
            {"path": "x.npy"},
            "corpora.x.kind: is missing: add `kind` package, hdf5, npy, parquet or flights",
        ),
        ({**CORPUS, "pat": 1}, "corpora.x.pat: unknown key: did you mean 'path'?"),
        ({**CORPUS, "sha256": "abc"}, "corpora.x.sha256: must match the pattern"),
        (None, "corpora.x: must be a block of keys, is null"),
    ],
)
def test_a_mistake_in_a_corpus_is_that_of_its_kind(corpus: Any, expected: str) -> None:
    found = problems({"corpora": {"x": corpus}})
    assert len(found) == 1
    assert expected in found[0]


def test_defaults_of_a_corpus_are_those_of_its_kind() -> None:
    parquet = {**CORPUS, "kind": "parquet", "vector": "emb"}
    config = load(BASE, [{"corpora": {"x": CORPUS, "y": parquet}}])
    assert config["corpora"]["x"] == CORPUS
    assert config["corpora"]["y"] == {**parquet, "payload": []}


def test_a_password_in_the_address_is_refused_and_not_printed() -> None:
    for url in ("http://me:hunter2@host:1", "http://host:1?api-key=hunter2", "hunter2"):
        found = problems({"qdrant": {"image": None, "url": url}})
        assert len(found) == 1
        assert "hunter2" not in found[0]
    assert "api_key_env" in problems({"qdrant": {"image": None, "url": "http://u:p@h"}})[0]


def test_all_problems_are_listed_at_once() -> None:
    found = problems({"corpus": {"points": 0, "queries": "x"}, "scale": ""})
    assert len(found) == 3


def test_a_problem_names_the_last_file_that_has_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("optimizers: {steady: {passes: 0}, draining: {limit_s: 1}}\n")
    two.write_text("optimizers: {draining: {limit_s: 0}}\n")
    with pytest.raises(ConfigError) as caught:
        load(BASE, [one, two])
    assert [text.split(": ")[:2] for text in caught.value.problems] == [
        ["two.yaml", "optimizers.draining.limit_s"],
        ["one.yaml", "optimizers.steady.passes"],
    ]


def test_every_number_of_every_schema_has_a_maximum() -> None:
    """What can be infinitely large hangs or crashes what reads it; claims are only printed."""

    def unbounded(part: Any, where: str) -> list[str]:
        if isinstance(part, list):
            return [name for i, item in enumerate(part) for name in unbounded(item, f"{where}.{i}")]
        if not isinstance(part, dict):
            return []
        found = [name for key, item in part.items() for name in unbounded(item, f"{where}.{key}")]
        if part.get("type") in ("integer", "number"):
            found += [where] if not {"maximum", "exclusiveMaximum"} & part.keys() else []
        return found

    for name in ("config", "corpora", "images", "operations", "optimizers"):
        assert unbounded(schemas.read_schema(f"{name}.schema.yaml"), name) == []


def test_a_key_that_stands_twice_is_refused_though_snakemake_has_merged_the_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("scale: a\nscale: b\n")
    merged = {**yaml.safe_load(BASE.read_text()), "scale": "b"}
    with pytest.raises(ConfigError, match=r"twice\.yaml: line 2, .*'scale' stands twice"):
        validate(merged, [BASE, path])


@pytest.mark.parametrize(
    ("name", "read"),
    [("optimizers", load_optimizers), ("images", load_images), ("claims", load_claims)],
)
def test_catalogs_refuse_numbers_without_end_and_keys_that_are_no_text(
    name: str, read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text("configurations: {7: {}}\nlast: [.inf]\n")
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert [text.split("yaml: ")[1] for text in caught.value.problems] == [
        "configurations: the key 7 must be text: put it in quotes",
        "last[0]: must be a finite number, is inf: give a number with an end",
    ]


def test_a_file_of_the_command_line_is_named_though_snakemake_lists_it_first(
    tmp_path: Path,
) -> None:
    bad, worse = tmp_path / "bad.yaml", tmp_path / "worse.yaml"
    bad.write_text("corpus: {points: -1, queries: -1}\n")
    worse.write_text("corpus: {points: -2}\n")
    merged = yaml.safe_load(BASE.read_text())
    merged["corpus"] |= {"points": -2, "queries": -1, "seed": -3}
    with pytest.raises(ConfigError) as caught:
        Plans(merged, [bad, worse, BASE], PROJECT, {"corpus": {"seed": -3}})
    assert [text.rpartition("/")[2].split(":")[0] for text in caught.value.problems] == [
        "worse.yaml",
        "bad.yaml",
        "command line (--config)",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("day: 2026-13-45\n", "not valid YAML: month must be in 1..12"),
        ("scale: a\nscale: b\n", "line 2, column 1: not valid YAML: the key 'scale' stands twice"),
        ("corpus: [1\n", "not valid YAML"),
        ("- 1\n", "must be a block of keys, is list"),
    ],
)
def test_a_file_that_is_no_configuration_says_where(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(BASE, [path])
    assert "bad.yaml" in str(caught.value)
    assert expected in str(caught.value)


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"# fine\nscale: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml: line 2: is not UTF-8"):
        load(BASE, [path])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load(tmp_path / "none.yaml")


def test_a_wrong_entry_of_the_catalog_is_named(tmp_path: Path) -> None:
    path = tmp_path / "optimizers.yaml"
    entry = {"group": "X", "label": "x", "description": "x", "optimzers": {}}
    path.write_text(yaml.safe_dump({"configurations": {"X1": entry}}))
    with pytest.raises(ConfigError) as caught:
        load_optimizers(path)
    assert "configurations.X1.optimzers: unknown key: did you mean 'optimizers'?" in str(
        caught.value
    )


def test_a_followup_is_one_event(tmp_path: Path) -> None:
    path = tmp_path / "optimizers.yaml"
    followup = {"delete": {"share": 0.1}, "reconfigure": {"hnsw": {"m": 8}}}
    entry = {"group": "X", "label": "x", "description": "x", "followup": followup}
    path.write_text(yaml.safe_dump({"configurations": {"X1": entry}}))
    with pytest.raises(ConfigError, match=r"X1\.followup: must have at most 1 key"):
        load_optimizers(path)
