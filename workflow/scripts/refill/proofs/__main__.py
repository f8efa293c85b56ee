"""Prove it on the command line: `python -m refill.proofs --images results/images --output FILE`.

Attempts and scratch go below `results` of the folder it is called in. Exits with 1 when the proof
does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refill.config import PROJECT
from refill.engines.description import EngineError
from refill.evidence.code import code_hash
from refill.evidence.records import RecordError
from refill.processes import StoppedError
from refill.progress import Progress
from refill.proofs.calls import ScriptsError
from refill.proofs.engines import QDRANT, VALKEY
from refill.proofs.findings import ControlError, NotRunError
from refill.proofs.measure import Files, prove
from refill.proofs.replay import FORM, replay
from refill.proofs.suite import SCALES
from refill.told import ToldError, with_notes

IMAGE_NAMES = {"old": "gateway-old", "new": "gateway-new", QDRANT: "qdrant-edge"}
# In containers the server is one of an image, too.
CONTAINER_NAMES = {**IMAGE_NAMES, VALKEY: "valkey"}
SCRIPTS = PROJECT / "workflow" / "scripts"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit status: 0 it holds, 1 it does not, 2 a wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m refill.proofs", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "--images", type=Path, required=True,
        help="folder of the built images: " + ", ".join(f"{n}.json" for n in IMAGE_NAMES.values()),
    )  # fmt: skip
    parser.add_argument(
        "--docker", nargs="?", const="", metavar="HOST",
        help="in containers of the images, valkey.json among them, by the daemon at HOST (by "
        "default as for the docker command)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="the record to write")
    parser.add_argument("--scale", choices=SCALES, default="full", help="%(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (%(default)s)")
    parser.add_argument(
        "--server", action="append", default=[], metavar="NAME=PATH",
        help="a server's program, such as valkey-8.1=PATH, which is the one that counts",
    )  # fmt: skip
    parser.add_argument(
        "--replay", metavar=FORM,
        help="run one episode of a crash history again, as a failure names it: the same attack, "
        "with what is in flight in an order of its own, so once may not show it; no record",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if (options.output is None) == (options.replay is None):
        parser.error(f"give --output FILE, or --replay {FORM}")
    servers: dict[str, str | None] = {}
    for given in options.server:
        name, found, path = given.partition("=")
        if not (name and found and path):
            parser.error(f"--server {given}: write NAME=PATH")
        servers[name] = path
    plan = {
        "code": code_hash(SCRIPTS / "run_proof.py", SCRIPTS),
        "scale": options.scale,
        "form": options.scale,
        "seed": options.seed,
        "servers": servers,
        "runtime": "process",
    }
    names = IMAGE_NAMES
    if options.docker is not None:
        plan |= {"runtime": "docker", "docker": {"host": options.docker or None}}
        names = CONTAINER_NAMES
    images = {name: options.images / f"{file}.json" for name, file in names.items()}
    files = Files(Path(), images, options.output or Path("none"))
    try:
        if options.replay:
            return _replay(plan, files, options.replay)
        record = prove(plan, files, Progress("proof", sys.stderr, sys.stdout))
    except (
        EngineError, ControlError, NotRunError, RecordError, ScriptsError, ToldError, OSError,
    ) as error:  # fmt: skip
        print(f"proof: {with_notes(error)}", file=sys.stderr)
        return 1
    except StoppedError as stopped:
        print(f"proof: {with_notes(stopped)}", file=sys.stderr)
        return 130
    for reason in record["invalid"]:
        print(f"DOES NOT HOLD: {reason}")
    for server, counts in record["counts"].items():
        print(f"{server}: " + ", ".join(f"{n} {what}" for what, n in counts.items() if n))
    print(f"{'holds' if record['valid'] else 'does not hold'}: {options.output}")
    return 0 if record["valid"] else 1


def _replay(plan: dict[str, Any], files: Files, what: str) -> int:
    failures = replay(plan, files, what, print)
    for failure in failures:
        print(failure)
    print(f"{what}: {f'{len(failures)} failures' if failures else 'holds'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
