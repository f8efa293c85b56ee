"""The command line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from .identity import TITLE, VERSION

_MEBIBYTE = 1024 * 1024


def parse(arguments: list[str]) -> argparse.Namespace:
    """The arguments, checked. Exits with status 2 and a message if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="qdrant-edge",
        description="Part of Qdrant's REST API in front of the embedded Qdrant (qdrant-edge-py). "
        "Not the Qdrant server.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{TITLE} {VERSION}")
    parser.add_argument("--storage", type=Path, metavar="DIR", help="directory of the collections")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 takes a free one")
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable with the API key to ask for"
    )
    parser.add_argument(
        "--max-request-size-mb", type=int, default=32, help="largest body in MiB (%(default)s)"
    )
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning"))
    # How the server starts its optimizer process; not for people.
    parser.add_argument("--optimizer-of", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.optimizer_of is not None:
        return options
    if options.storage is None:
        parser.error("--storage DIR is missing")
    if options.storage.exists() and not options.storage.is_dir():
        parser.error(f"--storage {options.storage}: not a directory")
    if options.port is None:
        parser.error("--port N is missing (0 takes a free port)")
    if not 0 <= options.port < 65536:
        parser.error(f"--port {options.port}: must be from 0 to 65535")
    if options.max_request_size_mb < 1:
        parser.error(f"--max-request-size-mb {options.max_request_size_mb}: must be at least 1")
    options.api_key = None
    if options.api_key_env is not None:
        options.api_key = os.environ.get(options.api_key_env)
        if not options.api_key:
            parser.error(f"--api-key-env {options.api_key_env}: this variable is not set or empty")
    cpus = os.environ.get("QDRANT_NUM_CPUS")
    if cpus is not None and not (cpus.isascii() and cpus.isdigit() and int(cpus) > 0):
        parser.error(f"QDRANT_NUM_CPUS={cpus!r} in the environment: must be a positive number")
    if sys.platform != "linux":
        parser.error("runs on Linux only: the optimizer process must die with the server")
    options.body_limit = options.max_request_size_mb * _MEBIBYTE
    return options


def main(arguments: list[str], archive: Path) -> int:
    """Run what the command line asks for; returns the exit status.

    `archive` is the directory or zip archive that this code runs from.
    """
    options = parse(arguments)
    logging.basicConfig(
        level=(options.log_level or "warning").upper(),
        format="%(asctime)s %(levelname)s qdrant-edge[%(process)d]: %(message)s",
    )
    if options.optimizer_of is not None:
        from .optimizer_process import serve

        return serve(options.optimizer_of)
    from .server import run

    return run(options, archive)
