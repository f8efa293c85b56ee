"""A proxy with one fault: `python -m refill.faults --to URL --fault NAME`; `... table` lists all.

Start it between the driver and an engine and run the workflow against it, for example with
`qdrant: {image: null, url: http://127.0.0.1:PORT}`: the record says what was noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from refill.faults.kinds import ALL, CONTROL, FAULTS, SEARCH, UPLOAD
from refill.faults.proxy import Options, Proxy
from refill.faults.table import markdown
from refill.load.wire import Address


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit status."""
    listed = "\n".join(f"  {name:14} {fault.words}" for name, fault in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m refill.faults",
        description=__doc__,
        epilog=f"faults:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=["table"], help="print faults and checks")
    parser.add_argument("--to", help="the engine, http://host:port")
    parser.add_argument("--fault", choices=FAULTS, help="what goes wrong")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any)")
    parser.add_argument("--seed", type=int, default=1, help="draws which requests are hit")
    parser.add_argument("--share", type=float, help="share of the requests that is hit")
    parser.add_argument("--on", choices=[SEARCH, UPLOAD, CONTROL, ALL], help="requests concerned")
    parser.add_argument("--at", type=int, default=1, help="first request that can be hit")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a stall")
    parser.add_argument("--log", type=Path, help="file for the faults that were put in")
    options = parser.parse_args(arguments)
    if options.command == "table":
        sys.stdout.write(markdown())
        return 0
    if not options.to or not options.fault:
        parser.error("--to and --fault are needed, or the word table")
    if options.share is not None and not 0 < options.share <= 1:
        parser.error(f"--share {options.share}: must be above 0 and at most 1")
    try:
        to = Address.from_url(options.to)
    except ValueError as error:
        parser.error(f"--to: {error}")
    if to.tls or to.prefix:
        parser.error(f"--to {options.to}: http://host:port only, without TLS and without a path")
    wanted = Options(
        to, options.fault, options.seed, options.share, options.on, options.at, options.seconds
    )
    log = options.log.open("a") if options.log else sys.stderr
    with suppress(KeyboardInterrupt):
        asyncio.run(Proxy(wanted, log).run(options.port, _ready))
    return 0


def _ready(port: int) -> None:
    sys.stdout.write(f"listening on http://127.0.0.1:{port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
