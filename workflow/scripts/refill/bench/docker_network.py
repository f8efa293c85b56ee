"""What the network of a container costs a client: PING to one Valkey by three ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refill.engines import valkey
from refill.evidence.records import read_json
from refill.runtimes.docker import ContainerRun
from refill.runtimes.docker_daemon import connect, daemon_record
from refill.runtimes.docker_pulls import present
from refill.runtimes.network import compare, resp
from refill.runtimes.process import ProcessEngine

ROUND_TRIPS = 5000
START_S = 30.0


def measure(results: Path, folder: Path) -> dict[str, Any]:
    """Time PING through a published port, at the container's address, and without a container.

    Args:
        results: of a run with `runtime: docker`; its image of Valkey is used.
        folder: takes the data and the logs.

    Returns:
        p50 and p95 of each way in microseconds, and how much the first two exceed the last.

    Raises:
        RuntimeError: there is no such image, or the container's address is out of reach.
        EngineError: there is no daemon, or a Valkey does not start.
    """
    path = results / "images" / "valkey.json"
    if not path.is_file():
        raise RuntimeError(
            "no image of Valkey in the results: run `snakemake --cores 1 all --configfile "
            "config/docker.yaml` first, and give its results with --results"
        )
    image, password = read_json(path, "refill.image/1"), valkey.new_password()
    plain = valkey.server([str(valkey.find_binary(None))], password, START_S)
    client = connect()
    try:
        with (
            ContainerRun(client, None) as run,
            run.engine(
                valkey.container(image, password, START_S),
                present(client, image),
                folder / "container.log",
                shared=False,
            ) as inside,
            ProcessEngine(plain, folder / "process", folder / "process.log") as outside,
        ):
            address = inside.container_address()
            if address is None:
                raise RuntimeError("the container has no address of its own")
            ways = {
                "published_port": inside.address,
                "container_address": address,
                "no_container": outside.address,
            }
            found = compare(ways, resp, ROUND_TRIPS)
            daemon = daemon_record(client)
    finally:
        client.close()
    floor = found["no_container"]["p50_us"]
    return {
        "request": "PING",
        "round_trips": ROUND_TRIPS,
        **found,
        "published_port_cost_us": round(found["published_port"]["p50_us"] - floor, 1),
        "container_address_cost_us": round(found["container_address"]["p50_us"] - floor, 1),
        "daemon": daemon["version"],
    }
