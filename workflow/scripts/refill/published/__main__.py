"""Import published logs of the optimizer benchmark: `python -m refill.published import FILE...`.

Prints figures of each phase and what is wrong with them; with --output also one JSON record a file.
The formats are described in `refill/published/events.py`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refill.evidence.hashes import sha256_file
from refill.evidence.records import RecordError, write_json
from refill.published.events import LogError, read
from refill.published.figures import Expected, examine

SCHEMA = "refill.published/1"
COLUMNS = ("n", "p50_ms", "p95_ms", "p99_ms", "max_ms", "time_weighted_p50_ms")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit status: 0 imported (flagged or not), 1 not readable."""
    usual = Expected()
    parser = argparse.ArgumentParser(
        prog="python -m refill.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser("import", help="read logs, print figures and flags")
    importing.add_argument("files", nargs="+", type=Path, metavar="FILE")
    importing.add_argument("--output", type=Path, metavar="DIR", help="folder for the records")
    for name, kind, words in (
        ("queries", _count, "queries of one pass"),
        ("passes", _count, "passes of a steady phase"),
        ("timeout-s", _seconds, "what a lost search took"),
        ("drain-limit-s", _seconds, "when a drain is given up"),
    ):
        value = getattr(usual, name.replace("-", "_"))
        importing.add_argument(
            f"--{name}", type=kind, default=value, help=f"{words} (default: {value:g})"
        )
    options = parser.parse_args(arguments)
    expected = Expected(options.queries, options.passes, options.timeout_s, options.drain_limit_s)
    names = [path.name for path in options.files]
    twice = sorted({name for name in names if names.count(name) > 1})
    if options.output and twice:
        sys.stderr.write(
            f"{', '.join(twice)}: several files have this name, and --output names a record by it: "
            "import them into folders of their own\n"
        )
        return 1
    status = 0
    for path in options.files:
        try:
            record = examine(read(path), expected)
            if options.output:
                content = {"schema": SCHEMA, "sha256": sha256_file(path), **record}
                write_json(options.output / f"{path.name}.json", content)
        except OSError as error:
            sys.stderr.write(f"{error.filename or path}: {error.strerror}\n")
            status = 1
            continue
        except (LogError, RecordError) as error:
            sys.stderr.write(f"{error}\n")
            status = 1
            continue
        sys.stdout.write(shown(record))
    return status


def shown(record: Mapping[str, Any]) -> str:
    """Give a record as text: a line a phase, a line a flag."""
    lines = [f"{record['file']}: {record['lines']:,} lines"]
    for phase in record["phases"]:
        figures = ", ".join(f"{name} {_figure(phase[name])}" for name in COLUMNS)
        lines.append(f"  {phase['phase']}: {figures}")
    lines += [f"  ! {f['check']}: {f['phase']}: {f['words']}" for f in record["flags"]]
    if not record["flags"]:
        lines.append("  nothing to flag")
    return "\n".join(lines) + "\n"


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < len(text) < 10 or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be seconds, a number above 0")
    return value


def _figure(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


if __name__ == "__main__":
    sys.exit(main())
