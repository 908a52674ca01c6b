"""Measures one more warm test where another engine starts the ranks, against the fork launcher."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from everyrank.launch.rendezvous import reserved_port

from benchmarks.measure import CASES, HERE, Cost, Row, at_most, median, median_ratio, paired, pytest

FEW, MANY, TESTS = 20, 220, 1000
_WORK = "4 ranks, gloo, all_reduce, warm world, one more test"


def rows() -> Iterator[Row]:
    with reserved_port() as (_, port):
        agent = ("--nproc-per-node=4", "--master-addr=127.0.0.1", f"--master-port={port}")
        torchrun = (sys.executable, "-m", "torch.distributed.run", *agent, "-m", "pytest")
        yield _compare("by --launcher=torchrun", 2, ("--launcher=torchrun",), torchrun)
    if importlib.util.find_spec("ray") is None:
        return
    with _two_nodes() as address:
        options = ("--launcher=ray", f"--ray-address={address}")
        yield _compare("by --launcher=ray on a cluster of two nodes on loopback", 3, options)
        wrong = _wrong_verdicts(options)
        work = f"{TESTS:,} tests on a Ray cluster of two nodes, every fiftieth fails on one rank: wrong verdicts"
        yield Row(work, "0", str(wrong), wrong == 0)


def _compare(name: str, limit: float, options: Sequence[str], command: Sequence[str] | None = None) -> Row:
    rounds = paired(
        3,
        lambda: pytest("group", FEW).cost,
        lambda: pytest("group", MANY).cost,
        lambda: pytest("group", FEW, *options, command=command).cost,
        lambda: pytest("group", MANY, *options, command=command).cost,
    )
    more = [((many - few) / (MANY - FEW), (many2 - few2) / (MANY - FEW)) for few, many, few2, many2 in rounds]
    clock = median_ratio([tuple(Cost(cost.seconds, 1.0) for cost in costs) for costs in more], 1, 0)
    ratio = Cost(clock.seconds, math.nan)  # the engine's processes are no children of ours
    figures = f"{median(more, 1) * 1e3:.1f} ms against {median(more, 0) * 1e3:.1f} ms"
    return at_most(f"{_WORK} {name}, against the fork launcher", limit, ratio, figures)


@contextlib.contextmanager
def _two_nodes() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.ray_cluster"]
    with subprocess.Popen(
        command, cwd=HERE.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = (line.split() for line in process.stdout)
        yield next(words[1] for words in lines if words[:1] == ["address"])
        process.communicate(timeout=60)


def _wrong_verdicts(options: Sequence[str]) -> int:
    """Return how many of the tests of ``cases/mixed.py`` had another verdict than was planted."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        environment = {
            "BENCHMARK_TESTS": str(TESTS),
            "BENCHMARK_STOPWATCH": f"{folder}/stopwatch",
            "BENCHMARK_BEGAN": "0",
        }
        command = (sys.executable, "-m", "pytest", "-q", "-c", CASES / "pytest.ini", f"--junitxml={report}")
        subprocess.run(
            [*command, *options, CASES / "mixed.py"],
            env={**os.environ, **environment}, capture_output=True, timeout=900, check=False,
        )  # fmt: skip
        cases = {
            int(re.findall(r"\d+", case.get("name", ""))[0]): case
            for case in ElementTree.parse(report).iter("testcase")
        }
    return sum(not _is_right(number, cases.get(number)) for number in range(TESTS))


def _is_right(number: int, case: ElementTree.Element | None) -> bool:
    if case is None:
        return False
    failure = case.find("failure")
    if number % 50:
        return failure is None and case.find("error") is None and case.find("skipped") is None
    text = "" if failure is None else f"{failure.get('message')}{failure.text}"
    return f"rank {number % 4} of 4 failed first" in text and f"planted {number}\n" in f"{text}\n"
