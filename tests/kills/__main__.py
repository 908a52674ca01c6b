"""``make kills``: kill random processes of runs, and check that what each run reports is true.

Runs of a small suite (``suite/hunted.py``) are started until so many processes were killed: ranks, keepers, their
successors, actors, controllers, workers, agents. Each run must end, have no wrong verdict, and leave nothing. Which
process is killed, when, and how, follows from the seed and the number of the run: ``--only RUN`` repeats a run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.kills.hunt import Hunt
from tests.kills.judge import judge
from tests.kills.plan import ROLES, Plan, draw
from tests.kills.truth import TRUTHS


def main() -> int:
    options = _options()
    report = Path(options.report or f"build/kills/{options.launcher}-{options.seed}").resolve()
    report.mkdir(parents=True, exist_ok=True)
    began, kills, findings, run = time.monotonic(), 0, 0, options.first if options.only is None else options.only
    roles: Counter[str] = Counter()
    verdicts = 0
    with open(report / "kills.jsonl", "a") as log:
        while kills < options.kills and time.monotonic() - began < options.minutes * 60:
            plan = draw(options.launcher, options.seed, run, options.most)
            hunt, problems, judged = _hunt(plan, report, options.patience)
            for entry in hunt.log:
                log.write(json.dumps({"kill": kills, "run": run, "seed": options.seed, **entry}) + "\n")
                kills += 1
                roles[f"{entry['role']} {entry['signal']}"] += 1
            log.flush()
            findings += bool(problems)
            verdicts += judged
            for problem in problems:
                print(f"WRONG: run {run}: {problem}", flush=True)
            print(f"run {run}: {len(hunt.log)} kills, {kills} in all", file=sys.stderr, flush=True)
            run += 1
            if options.only is not None:
                break
    minutes = (time.monotonic() - began) / 60
    print(f"{options.launcher}: {kills} kills, {verdicts} verdicts, {findings} runs with findings, {minutes:.1f} min")
    print(", ".join(f"{role}: {count}" for role, count in sorted(roles.items())))
    return 1 if findings else 0


def _hunt(plan: Plan, report: Path, patience: float) -> tuple[Hunt, list[str], int]:
    """Run a hunt, and judge it. What it printed is kept if anything is wrong."""
    # A short name: the names of sockets in it may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        hunt = Hunt(plan, folder, patience)
        seen = hunt.run()
        problems = judge(seen, TRUTHS)
        if problems:
            _keep(hunt, problems, folder, report / f"run-{plan.run}")
        return hunt, problems, len(seen.lines)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _keep(hunt: Hunt, problems: list[str], folder: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for name in ("out.txt", "run.jsonl"):
        if (folder / name).exists():
            shutil.copy(folder / name, target)
    kills = "\n".join(map(repr, hunt.kills))
    spans = "\n".join(map(repr, hunt.spans))
    parts = "\n".join(problems), repr(hunt.plan), kills, spans, hunt.stacks
    (target / "findings.txt").write_text("\n\n".join(parts))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--launcher", choices=list(ROLES), default="fork")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=300, help="end after so many kills (default: 300)")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="begin no run after so many minutes (default: 60)"
    )
    parser.add_argument("--most", type=int, default=14, help="at most so many kills in one run (default: 14)")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="times by which all limits are longer, on a busy machine (default: 1)",
    )
    parser.add_argument("--first", type=int, default=0, help="the number of the first run (default: 0)")
    parser.add_argument("--only", type=int, metavar="RUN", help="repeat this run alone")
    parser.add_argument("--report", help="the folder for the log and for what wrong runs printed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
