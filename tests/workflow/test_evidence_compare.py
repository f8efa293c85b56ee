"""Two results compared: refused field by field, or a verdict for each cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from falsified import RECORD, rewritten
from refill.evidence.__main__ import main
from refill.evidence.hashes import sha256_file
from refill.evidence.records import read_json, write_json


def _no_difference(line: str) -> bool:
    return "  undecidable  " in line or "  equivalent  " in line


def test_equal_results_are_compared_and_no_difference_is_called(
    manifest: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(manifest), str(other)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["cell", "figure", "old", "new", "new/old", "verdict", "why"]
    cells = [line for line in lines if line.startswith("on-main, ")]
    assert len(cells) == 2 * 6 * 2
    assert all("1.000" in line and _no_difference(line) for line in cells)
    assert any(line.startswith("A2") and "drain_s" in line for line in lines)


def _faster(path: Path, factor: float) -> None:
    """Make all trials of the new image's rounds faster, with the hashes that go with it."""
    content = read_json(path)
    for record in [r for r in content["results"] if "/on-main/new-" in r and r.count(".") == 1]:
        if not record.endswith(".json"):
            continue
        file = path.parent.parent / record

        def change(value: dict[str, Any]) -> None:
            for cell in value["cells"]:
                for trial in cell["trials"]:
                    for key in ("p50_ms", "p95_ms"):
                        trial["stats"][key] *= factor

        rewritten(file, change)
        content["results"][record].update(sha256=sha256_file(file), bytes=file.stat().st_size)
    write_json(path, content)


def test_faster_and_slower_are_told_apart(
    manifest: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Far beyond what two rounds on a busy machine differ by.
    _faster(other, 1e-6)
    for old, new, word in ((manifest, other, "faster"), (other, manifest, "slower")):
        assert main(["compare", str(old), str(new)]) == 0
        lines = capsys.readouterr().out.splitlines()
        changed = [line for line in lines if line.startswith("on-main, new, ")]
        assert len(changed) == 12
        assert all(f"  {word}  " in line for line in changed)
        same = [line for line in lines if line.startswith("on-main, old, ")]
        assert all(map(_no_difference, same))


def _set(path: Path, keys: list[Any], value: Any) -> None:
    content = read_json(path)
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    write_json(path, content)


def _rewritten(path: Path, name: str, **changes: Any) -> None:
    """Change a file of the results, with the hash that goes with it."""
    file = path.parent.parent / name
    rewritten(file, lambda content: content.update(changes))
    content = read_json(path)
    content["results"][name].update(sha256=sha256_file(file), bytes=file.stat().st_size)
    write_json(path, content)


def test_results_are_not_compared_with_themselves(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(manifest), str(manifest)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("runs: both have the attempts optimizers-A2-1/")
    assert " and 2 more: they would be compared with themselves" in error


@pytest.mark.parametrize("name", ["images/gateway-new.json", "corpora/small/corpus.json"])
def test_what_is_compared_by_is_what_the_manifest_names(
    manifest: Path, other: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(other.parent / name, lambda content: content.update(added=1))
    assert main(["compare", str(manifest), str(other)]) == 2
    assert f"results/{name}: has changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (["config", "scale"], "paper", "scale"),
        (["config", "optimizers", "search", "limit"], 7, "config.optimizers.search.limit"),
        (["config", "rounds", "counts", "warm"], 9, "config.rounds.counts.warm"),
        (["hosts", 0, "host", "cpu", "model"], "Other", "host.cpu.model"),
        (["hosts", 0, "host", "cpu", "cores_usable"], 64, "host.cpu.cores_usable"),
        (["hosts", 0, "host", "memory", "total_bytes"], 1, "host.memory.total_bytes"),
        (["hosts", 0, "host", "kernel"], "7.0", "host.kernel"),
        (["runs", 0, "code"], "0" * 64, "code.round"),
        (["results", "results/corpora/small/corpus.json", "sha256"], "0" * 64, "corpora.small"),
        (["versions", "packages", "numpy"], "1.0", "versions.packages.numpy"),
        (["engines", 1, "engine", "version"], "0.1", "engines."),
    ],
)
def test_results_that_differ_in_what_matters_are_refused_field_by_field(
    manifest: Path, other: Path, capsys: pytest.CaptureFixture[str],
    keys: list[Any], value: Any, field: str,
) -> None:  # fmt: skip
    if keys[0] == "results":
        _rewritten(other, keys[1], title="another")
    else:
        _set(other, keys, value)
    assert main(["compare", str(manifest), str(other)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith(field) and " in the old results, " in line for line in lines)
    assert "1 fields differ that change figures: not compared" in lines[-1]
    allowed = field.rstrip(".")
    assert main(["compare", str(manifest), str(other), "--allow", allowed]) == 0
    assert capsys.readouterr().out.startswith(f"allowed to differ: {field}")


def test_another_image_is_compared_only_when_that_is_meant(
    manifest: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _rewritten(other, "results/images/gateway-new.json", id="sha256:" + "0" * 64)
    assert main(["compare", str(manifest), str(other)]) == 1
    assert capsys.readouterr().err.startswith("images.gateway-new: sha256:")
    arguments = ["compare", str(manifest), str(other), "--allow"]
    assert main([*arguments, "images"]) == 0
    assert main([*arguments, "image"]) == 2
    assert "--allow image: no such field: did you mean 'images'?" in capsys.readouterr().err


def test_repeats_and_limits_of_waiting_do_not_matter(manifest: Path, other: Path) -> None:
    _set(other, ["config", "optimizers", "repeats"], 9)
    _set(other, ["config", "qdrant", "start_timeout_s"], 9)
    assert main(["compare", str(manifest), str(other)]) == 0


def test_what_cannot_be_read_is_an_error_of_its_own(
    manifest: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path / "none.json")]) == 2
    assert "none.json: no such file" in capsys.readouterr().err
    _set(other, ["order", "as_planned"], "yes")
    for command in (["verify"], ["compare", str(manifest)], ["pack"]):
        assert main([*command, str(other)]) == 2
        wrong = "manifest.json: order.as_planned: must be true or false, is 'yes'"
        assert wrong in capsys.readouterr().err
    (other.parent.parent / RECORD).unlink()
    _set(other, ["order", "as_planned"], True)
    assert main(["compare", str(manifest), str(other)]) == 2
    assert f"{RECORD}: is missing" in capsys.readouterr().err
