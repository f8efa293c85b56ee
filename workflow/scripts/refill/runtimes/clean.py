"""Remove what killed runs left with the Docker daemon: `python -m refill.runtimes.clean`.

Only things that carry this project's labels, and only those whose process is gone. Images stay:
they are results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from refill.engines.description import EngineError
from refill.runtimes.cgroups import ControlGroups
from refill.runtimes.docker_daemon import connect
from refill.runtimes.leftovers import find, remove_run, sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit status."""
    parser = argparse.ArgumentParser(prog="python -m refill.runtimes.clean", description=__doc__)
    parser.add_argument("--host", help="the daemon's address; default: DOCKER_HOST or its socket")
    parser.add_argument(
        "--run", metavar="RUN", help="remove this run, whether or not its process lives"
    )
    options = parser.parse_args(arguments)
    kept: list[str] = []
    try:
        client = connect(options.host)
        if options.run:
            removed = [str(left) for left in find(client, options.run)]
            remove_run(client, options.run)
        else:
            removed, kept = sweep(client, ControlGroups.here())
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.writelines(f"removed: {line}\n" for line in removed)
    sys.stdout.writelines(f"left: {line}\n" for line in kept)
    if not removed and not kept:
        sys.stdout.write(f"nothing was left with the daemon at {client.api.base_url}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
