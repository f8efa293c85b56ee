"""The command line: `serve` (the default) and `recover`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

import uvloop

from gateway.recover import Options, recover
from gateway.service import serve
from gateway.settings import PREFIX, SettingError, read


def main(arguments: Sequence[str]) -> int:
    """Run a command; gives the exit status: 0, 1 for a failure, 2 for a wrong use."""
    parser = argparse.ArgumentParser(
        prog="gateway",
        description="Part of Elasticsearch 8's REST API over Qdrant and Valkey. Settings come from "
        f"the environment ({PREFIX}...); README.md has the table.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("serve", help="serve requests (the default)")
    resolving = commands.add_parser(
        "recover", help="resolve what a dead gateway left, and print what was done"
    )
    resolving.add_argument(
        "--older-than", type=int, default=30, metavar="S",
        help="leave what is younger than S seconds (%(default)s): its gateway may be alive",
    )  # fmt: skip
    resolving.add_argument(
        "--grace", type=float, default=10.0, metavar="S",
        help="seconds that a request that was cut off may take to reach a Qdrant that answers "
        "(%(default)s); more when a proxy or a network stands between",
    )  # fmt: skip
    resolving.add_argument(
        "--new-epoch", action="store_true",
        help="give up all cached responses; begin a catalog where Valkey has lost it",
    )  # fmt: skip
    resolving.add_argument(
        "--drop-orphans", action="store_true",
        help="delete collections in Qdrant that belong to no index",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        settings = read()
    except SettingError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    if options.command != "recover":
        return uvloop.run(serve(settings))
    if options.older_than < 0 or options.grace < 0:
        parser.error("--older-than and --grace must not be negative")
    return uvloop.run(
        recover(
            settings,
            Options(options.older_than, options.grace, options.new_epoch, options.drop_orphans),
        )
    )
