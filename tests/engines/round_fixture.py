"""What a round needs, made small: flights, the images of this project, a plan."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from refill.config import PROJECT
from refill.corpora.flights import prepare_flights
from refill.evidence.hashes import sha256_bytes, sha256_file
from refill.evidence.records import write_bytes, write_json
from refill.image_sources import read_source
from refill.images import archive
from refill.operations.catalog import load_operations
from refill.phases.measure_round import Files
from refill.phases.round_plan import plain
from refill.progress import Progress

MEMBER = "pack-1.0/flights.csv"
COUNTS = {"trials": 2, "clients": [1, 3], "warm": 12, "cold_enabled": 12, "cold_disabled": 9}
QDRANT = {
    "image": "qdrant-edge",
    "api_key_env": "REFILL_TEST_NO_KEY",
    "cpus": 0,
    "start_timeout_s": 30,
}


def flights_csv(count: int, seed: int = 5) -> str:
    """Make a table of flights: ties and missing delays, few carriers, long distances."""
    rng = np.random.default_rng(seed)
    lines = ["carrier,flight,tailnum,origin,dest,dep_delay,arr_delay,air_time,distance,time_hour"]
    for number in range(count):
        delay = "NA" if rng.random() < 0.1 else str(int(rng.integers(-5, 40)))
        lines.append(
            f"{rng.choice(['UA', 'B6', 'EV', 'DL'])},{number % 97},N{number % 31},"
            f"{rng.choice(['EWR', 'JFK', 'LGA'])},D{int(rng.integers(23)):02d},{delay},{delay},"
            f"{int(rng.integers(40, 300))},{int(rng.integers(9, 25)) * 100},"
            f"2013-{1 + number % 12:02d}-01T10:00:00Z"
        )
    return "\n".join(lines) + "\n"


def flights_package(path: Path, count: int) -> dict[str, Any]:
    """Write an archive with flights, as pip would have fetched it; give its entry in `corpora`."""
    data = flights_csv(count).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as packed:
        info = tarfile.TarInfo(MEMBER)
        info.size = len(data)
        packed.addfile(info, io.BytesIO(data))
    return {
        "kind": "flights",
        "package": "no-such-package-of-refill",
        "version": "1.0",
        "archive": "sdist",
        "sha256": sha256_file(path),
        "member": MEMBER,
    }


def build_image(root: Path, name: str, entry: dict[str, Any]) -> Path:
    """Build an image from this project's tree, whatever is pinned; give its record."""
    source = read_source(PROJECT, entry)
    data = archive(name, source.files)
    digest = sha256_bytes(data)
    write_bytes(root / f"results/images/{name}.pyz", data)
    record = root / f"results/images/{name}.json"
    write_json(
        record,
        {
            "schema": "refill.image/1",
            "name": name,
            "id": f"sha256:{digest}",
            "archive": f"results/images/{name}.pyz",
            "tag": f"{name}:test",
            "tree": source.state()["tree"],
        },
    )
    return record


def prepare(root: Path, documents: int = 600) -> None:
    """Put corpus and images of a round below a folder."""
    package = root / "flights.tar.gz"
    spec = flights_package(package, documents + 50)
    out = root / "results/corpora/flights"
    prepare_flights(spec, "flights", documents, 1, out, package, say=lambda _: None)
    build_image(root, "qdrant-edge", {"tree": "images/qdrant-edge"})
    for variant in ("old", "new"):
        over = f"images/gateway/variants/{variant}"
        build_image(root, f"gateway-{variant}", {"tree": "images/gateway", "variant": over})


def files(root: Path, profile: str, image: str, n: int = 1, edge: bool = True) -> Files:
    """Give the files of a round; without `edge` its Qdrant is not an image."""
    base = root / "results/rounds" / profile
    kinds = ("warm", "cold") if profile == "on-main" else ("cold",)
    return Files(
        root=root,
        corpus=root / "results/corpora/flights",
        gateway_image=root / f"results/images/gateway-{image}.json",
        qdrant_image=root / "results/images/qdrant-edge.json" if edge else None,
        record=base / f"{image}-{n}.json",
        ledger=base / f"{image}-{n}.parquet",
        resources=base / f"{image}-{n}.resources.json",
        profiles={kind: base / f"{image}-{n}.{kind}.json" for kind in kinds},
    )


def plan(profile: str, image: str, n: int = 1, **over: Any) -> dict[str, Any]:
    """Give the plan of a small round."""
    return {
        "profile": profile,
        "image": image,
        "n": n,
        "serving": profile == "on-main",
        "scale": "test",
        "seed": 1,
        "engines": ["gateway"],
        "operations": plain(load_operations()),
        "counts": COUNTS,
        "warm_up": 6,
        "timeout_s": 10,
        "trial_limit_s": 30,
        "qdrant": QDRANT,
        "cpus": 2,
        "valkey": {"binary": None, "start_timeout_s": 30},
        "gateway": {"ttl_s": 300, "max_entry_bytes": 262144, "start_timeout_s": 30},
        "code": "test",
    } | over


class Watcher(Progress):
    """Progress that does something once, when a round says certain words."""

    def __init__(self, words: str, act: Callable[[], None]) -> None:
        super().__init__("test", None, io.StringIO())
        self._words = words
        self._act = act
        self.acted = False

    def say(self, text: str) -> None:
        super().say(text)
        if self._words in text and not self.acted:
            self.acted = True
            self._act()


def child(words: str) -> psutil.Process:
    """Give the one child process whose command line holds some words."""
    found = [p for p in psutil.Process().children() if any(words in w for w in p.cmdline())]
    assert len(found) == 1, (words, found)
    return found[0]
