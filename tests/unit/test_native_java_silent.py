"""A Java that does not say in time what it is: an error, never another Java in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from refill.engines import java
from refill.engines.description import EngineError


def test_a_java_that_does_not_answer_in_time_is_named_and_no_other_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"quick": "echo java.base@1; echo '    java.specification.version = 21' >&2"}
    for name in ("quick", "silent"):
        program = tmp_path / name / "bin/java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{answers.get(name, 'exec sleep 60')}\n")
        program.chmod(0o755)
    monkeypatch.setattr(java, "SYSTEM", tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.find(str(tmp_path / "quick"), 21, None).feature == 21
    monkeypatch.setattr(java, "ASK_TIMEOUT_S", 3.0)
    with pytest.raises(EngineError, match=r"silent/bin/java did not say within 3 s what it is"):
        java.find("auto", 21, None)
