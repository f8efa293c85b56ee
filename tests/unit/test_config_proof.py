"""The `proof` section of the configuration, and the plans that come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refill.config import PROJECT, ConfigError, load
from refill.engines.description import EngineError
from refill.workflow import Plans

BASE = PROJECT / "config/config.yaml"


def with_proof(**proof: Any) -> dict[str, Any]:
    return load(BASE, [{"proof": proof}])


def test_the_shipped_scales_say_how_much_is_tried() -> None:
    forms = {
        name: load(BASE, [PROJECT / f"config/{name}.yaml"])["proof"]["form"]
        for name in ("smoke", "paper")
    }
    assert forms == {"smoke": "smoke", "paper": "full"}
    assert load(BASE)["proof"]["form"] == "full"


@pytest.mark.parametrize(
    ("proof", "expected"),
    [
        ({"form": "half"}, "proof.form: must be one of none, smoke, full"),
        ({"images": {"old": "gateway-odl"}}, "proof.images.old: no image 'gateway-odl'"),
        ({"servers": {"valkey-8.1": "nowhere/valkey"}}, "proof.servers.valkey-8.1"),
        ({"kills": 3}, "proof.kills: unknown key"),
    ],
)
def test_a_mistake_is_named_with_its_key(proof: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        with_proof(**proof)


def test_programs_of_this_machine_are_not_taken_for_containers() -> None:
    servers = {"servers": {"valkey-8.1": "/bin/true"}}
    with_proof(**servers)
    with pytest.raises(ConfigError, match=r"proof\.servers: .*tries docker\.valkey"):
        load(BASE, [{"runtime": "docker", "proof": servers}])


def test_the_plan_has_the_proofs_own_code_and_settings() -> None:
    plans = Plans(with_proof(form="smoke", seed=9), [BASE], PROJECT)
    plan = plans.proof()
    assert (plan["form"], plan["seed"], plan["servers"]) == ("smoke", 9, {})
    assert plan["images"] == {"old": "gateway-old", "new": "gateway-new", "qdrant": "qdrant-edge"}
    assert plans.proof_images == ["gateway-old", "gateway-new", "qdrant-edge"]
    assert list(plan) == sorted(plan)


def test_without_a_proof_no_image_is_built_for_it(tmp_path: Path) -> None:
    config = load(BASE, [{"proof": {"form": "none"}, "rounds": {"profiles": []}}])
    plans = Plans(config, [BASE], PROJECT)
    assert plans.proof_images == []
    assert plans.images == ["qdrant-edge"]
    del config["proof"]
    assert Plans(config, [BASE], PROJECT).proof_images == []


@pytest.mark.parametrize(
    ("name", "says"),
    [("redis-7", "true is no Valkey or Redis server"),
     ("valkey-9", r"is Redis 7\S+, and the name stands for Valkey 9")],
)  # fmt: skip
def test_what_is_no_such_server_is_refused_before_the_first_job(
    name: str, says: str, tmp_path: Path
) -> None:
    program = tmp_path / "true"
    words = {"redis-7": "ok", "valkey-9": "Redis server v=7.0.15 sha=0"}
    program.write_text(f"#!/bin/sh\necho '{words[name]}'\n")
    program.chmod(0o755)
    config = with_proof(servers={name: str(program)})
    with pytest.raises(EngineError, match=says):
        Plans(config, [BASE], PROJECT).check_servers()
    # There it is a program of the node.
    Plans({**config, "node_cpus": 8}, [BASE], PROJECT).check_servers()
    Plans(with_proof(), [BASE], PROJECT).check_servers()
