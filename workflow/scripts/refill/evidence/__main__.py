"""Command line of the evidence: `python -m refill.evidence verify results/manifest.json`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from refill.evidence.host import host_facts
from refill.evidence.manifest import verify
from refill.evidence.records import RecordError, canonical_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0 good, 1 difference or error."""
    parser = argparse.ArgumentParser(
        prog="python -m refill.evidence", description="Check what the workflow has produced."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    verifying = commands.add_parser("verify", help="hash every file of a manifest again")
    verifying.add_argument("manifest", type=Path)
    verifying.add_argument("--project", type=Path, help="folder with workflow/ (default: found)")
    commands.add_parser("host", help="print the facts about this machine that records hold")
    options = parser.parse_args(arguments)
    if options.command == "host":
        sys.stdout.write(canonical_json(host_facts(Path())))
        return 0
    try:
        found = verify(options.manifest, options.project)
    except RecordError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for line in found:
        sys.stderr.write(f"{line}\n")
    if found:
        sys.stderr.write(f"{options.manifest}: {len(found)} differences\n")
        return 1
    sys.stdout.write(f"{options.manifest}: every file is as it was\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
