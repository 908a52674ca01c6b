"""A ledger's round: a deviation is found, accepted, known, mended, stale, and gone again."""

from __future__ import annotations

import shlex

from tests.inner import Project

SUBJECT = """
    import os

    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.suites import Subject, conformance

    class Silent(RpcOptimizer):
        def step(self, context_id):
            if not os.path.exists("mended"):
                return
            super().step(context_id)

    MINE = Subject("mine.Silent", contract="rpc-optimizer", build=Silent, known="mine.toml")

    @conformance(MINE)
    def test_mine(case):
        case.run()
"""

EMPTY = '# What mine.Silent gets wrong.\nsubject = "mine.Silent"\n'


def _run(project: Project) -> tuple[int, str]:
    inner = project.run("test_mine.py", "--law=state.kept", "--run-file=run.jsonl")
    (test,) = inner.tests.values()
    return inner.code, test.properties["outcome"]


def _accept(project: Project) -> tuple[int, str]:
    environment = {name: value for name, value in project.environment().items() if name != "PYTHONPATH"}
    done = project.python("-m", "everyrank", "accept", "run.jsonl", environment=environment, within=60)
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_ledger_follows_what_the_runs_show(project: Project) -> None:
    project.write("test_mine.py", SUBJECT)
    ledger = project.write("mine.toml", EMPTY)
    assert _run(project) == (1, "fail")
    assert _accept(project) == (0, "mine.toml\n  + state.kept[ws2]\n1 deviation added as unreported\n")
    assert ledger.read_text().startswith(EMPTY)
    assert 'issue = "unreported"' in ledger.read_text()
    assert _run(project) == (0, "known")
    assert _accept(project) == (0, "nothing to accept\n")
    project.write("mended", "")
    assert _run(project) == (1, "stale")
    assert _accept(project) == (0, "mine.toml\n  - state.kept[ws2]\n1 stale entry removed\n")
    assert ledger.read_text() == EMPTY
    assert _run(project) == (0, "pass")


ALONE = """
    from everyrank.suites import Subject, conformance
    from torch import nn

    class Alone(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *inputs):
            return self.inner(*inputs)

        def set_requires_gradient_sync(self, on):
            pass

    @conformance(Subject("mine.Alone", contract="replicate", build=Alone, known="mine.toml"))
    def test_mine(case):
        case.run()
"""


def test_the_next_quick_run_takes_other_cases_unless_all_were_accepted(project: Project) -> None:
    project.write("test_mine.py", ALONE)
    project.write("mine.toml", "")

    def quick() -> set[str]:
        inner = project.run("test_mine.py", "--law=tied", "--profile=quick", "--run-file=run.jsonl")
        return {test.properties["outcome"] for test in inner.tests.values()}

    assert quick() == {"fail"}
    code, printed = _accept(project)
    assert code == 0
    command = next((shlex.split(line) for line in printed.splitlines() if "--profile=full" in line), [])
    assert command[:1] == ["pytest"], printed
    assert quick() == {"fail"}, "this is what the command is for"
    project.run(*command[1:-1], "--run-file=run.jsonl")
    assert _accept(project)[0] == 0
    assert quick() == {"known"}
