"""``make bench``: run every benchmark, print one table, and name what got slower than in the table that is kept.

``--write`` keeps the new table, in benchmarks/README.md and kept.json. Without it, the exit status is 1 if anything
got slower.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import sys
import time
from importlib.metadata import version

from benchmarks import kept
from benchmarks.cases import orphans
from benchmarks.measure import HERE, Row, table

NAMES = (
    "fresh",
    "warm",
    "rpc",
    "adopt",
    "large",
    "imports",
    "spawned",
    "single",
    "deadline",
    "faults",
    "mutate",
    "cluster",
    "nodes",
    "long",
    "parity",
    "script",
)

#: What takes minutes and much memory, and runs only if it is named.
LARGE = ("parity_large",)

_BEGIN, _END = "<!-- the last table: begin -->", "<!-- the last table: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"run only these: {', '.join((*NAMES, *LARGE))}")
    parser.add_argument("--write", action="store_true", help="store the table in benchmarks/README.md")
    options = parser.parse_args()
    names = options.names or list(NAMES)
    if unknown := set(names) - {*NAMES, *LARGE}:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join((*NAMES, *LARGE))}")
    if options.write and options.names:
        parser.error("--write stores the whole table: name no benchmark")
    started = time.monotonic()
    rows: list[Row] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").rows()
    lines = [*table(rows), "", f"{describe_host()} The run took {time.monotonic() - started:.0f} s."]
    print("\n".join(lines))
    if options.write:
        write(lines)
        kept.write(rows)
        return 0
    worse = list(kept.slower(rows, kept.read(), whole=not options.names))
    for sentence in worse:
        print(f"SLOWER: {sentence}")
    return 1 if worse else 0


def describe_host() -> str:
    """Return the date, the host and the versions in one line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    today = datetime.date.today().isoformat()
    return (
        f"{today}: {_processor()}, {cores} cores, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, torch {version('torch')}, pytest {version('pytest')}."
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def write(lines: list[str]) -> None:
    """Replace the table in benchmarks/README.md."""
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    readme.write_text("\n".join([before + _BEGIN, "", *lines, "", _END]) + after)


def run() -> int:
    """Run the command. Leave nothing behind if it is interrupted: torch's harness leaves its processes asleep."""
    orphans.adopt()
    try:
        return main()
    except BaseException:
        orphans.end()
        raise


if __name__ == "__main__":
    sys.exit(run())
