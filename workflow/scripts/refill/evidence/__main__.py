"""Command line of the evidence: verify, compare and pack results, or write them as a crate.

Exit status: 0 nothing differs (compare: the verdicts are printed), 1 something differs or is
refused, 2 what was named cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from refill.config.errors import ConfigError
from refill.evidence import compare, crate
from refill.evidence.hashes import sha256_file
from refill.evidence.host import host_facts
from refill.evidence.pack import PackError, pack
from refill.evidence.records import RecordError, canonical_json
from refill.evidence.verification import changed_files, inspect, project_of, read_manifest

SAME, DIFFERENT, UNREADABLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (RecordError, ConfigError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return UNREADABLE
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m refill.evidence",
        description="Check what the workflow has produced, compare it, hand it on.",
        epilog="Exit status: 0 same, 1 different or refused, 2 cannot be read.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    verifying = commands.add_parser("verify", help="hash every file, make every figure again")
    verifying.add_argument("manifest", type=Path, help="such as results/manifest.json")
    verifying.add_argument(
        "--files-only", action="store_true", help="hash every file, make no figure again"
    )
    _add_project(verifying)
    verifying.set_defaults(run=_verify)

    comparing = commands.add_parser("compare", help="verdict per cell of two comparable results")
    comparing.add_argument("old", type=Path, help="manifest of the old results")
    comparing.add_argument("new", type=Path, help="manifest of the new results")
    comparing.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="FIELD",
        help="a field that may differ, with all below it, such as images.gateway-new; repeatable",
    )
    comparing.set_defaults(run=_compare)

    packing = commands.add_parser("pack", help="write one archive that verifies elsewhere")
    packing.add_argument("manifest", type=Path)
    packing.add_argument(
        "--output", type=Path, help="the ZIP file (default: refill-<manifest's hash>.zip, here)"
    )
    _add_project(packing)
    packing.set_defaults(run=_pack)

    describing = commands.add_parser("crate", help="write the results as an RO-Crate")
    describing.add_argument("manifest", type=Path)
    describing.add_argument("--output", type=Path, required=True, help="a folder, made anew")
    _add_project(describing)
    describing.set_defaults(run=_crate)

    host = commands.add_parser("host", help="print the facts about this machine in records")
    host.set_defaults(run=_host)
    return parser


def _add_project(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", type=Path, help="folder with workflow/ (default: found)")


def _verify(options: argparse.Namespace) -> int:
    found = inspect(options.manifest, options.project, not options.files_only)
    for note in found.notes:
        sys.stdout.write(f"note: {note}\n")
    for line in found.differences:
        sys.stderr.write(f"{line}\n")
    if found.differences:
        sys.stderr.write(f"{options.manifest}: {len(found.differences)} differences\n")
        return DIFFERENT
    also = f"; {found.done}" if found.done else ""
    sys.stdout.write(f"{options.manifest}: every file is as it was{also}\n")
    return SAME


def _compare(options: argparse.Namespace) -> int:
    try:
        result = compare.compare(options.old, options.new, options.allow)
    except compare.NotComparableError as error:
        sys.stderr.write(f"{error}\n")
        return DIFFERENT
    sys.stdout.write(result)
    return SAME


def _pack(options: argparse.Namespace) -> int:
    read_manifest(options.manifest)
    output = options.output or Path(f"refill-{sha256_file(options.manifest)[:12]}.zip")
    try:
        packed = pack(options.manifest, output, options.project)
    except PackError as error:
        sys.stderr.write(f"{error}\n")
        return DIFFERENT
    for path, why in packed.withheld.items():
        sys.stdout.write(f"note: {path} is left out: {why}\n")
    sys.stdout.write(f"{packed.path}: {packed.files} files, SHA-256 {sha256_file(packed.path)}\n")
    return SAME


def _crate(options: argparse.Namespace) -> int:
    manifest = read_manifest(options.manifest)
    work = options.manifest.resolve().parent.parent
    project = options.project or project_of(work)
    changed = changed_files(project, manifest["sources"]) | changed_files(work, manifest["results"])
    if changed:
        sys.stderr.write("\n".join([*changed.values(), "no crate was written: mend this first\n"]))
        return DIFFERENT
    if options.output.exists() and not (options.output / crate.METADATA).is_file():
        sys.stderr.write(
            f"{options.output}: is there and is no crate: name a folder that may be made anew\n"
        )
        return DIFFERENT
    sys.stdout.write(f"{crate.write(manifest, work, project, options.output)}\n")
    return SAME


def _host(_: argparse.Namespace) -> int:
    sys.stdout.write(canonical_json(host_facts(Path())))
    return SAME


if __name__ == "__main__":
    sys.exit(main())
