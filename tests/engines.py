"""Run an inner pytest for all tests of a module, or on another engine: torchrun, with two agents on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from everyrank.launch.rendezvous import reserved_port

from tests.forked import ForkedRun
from tests.inner import Inner, Project

#: A value of `parametrize` whose test is in the group of launchers other than fork.
elsewhere = partial(pytest.param, marks=pytest.mark.group("clusters"))
#: The launchers under which the truth table is tested. With ``spawn,ray`` in the variable it takes nine minutes more.
LAUNCHERS = [
    launcher if launcher == "fork" else elsewhere(launcher)
    for launcher in os.environ.get("EVERYRANK_TESTS_LAUNCHERS", "fork,torchrun").split(",")
]


@dataclass
class Torchrun:
    """Agents of torchrun that run pytest in a project, as if each were on a host of its own."""

    project: Project
    agents: list[subprocess.Popen[str] | ForkedRun]
    port: contextlib.ExitStack  # no other process gets it

    def finish(self, within: float = 240) -> Inner:
        """Wait for all agents; return what pytest reported. ``code`` is the highest exit code of an agent."""
        out = []
        try:
            for agent in self.agents:
                out.append(agent.communicate(timeout=within)[0])
        except subprocess.TimeoutExpired:
            self.kill()
            out += [agent.communicate()[0] for agent in self.agents[len(out) :]]
            raise AssertionError(f"torchrun did not end within {within} s:\n{''.join(out)[-5000:]}") from None
        self.port.close()
        self.project.assert_nothing_left()
        tests, warnings = self.project.results()
        code = max(agent.wait() for agent in self.agents)
        return Inner(code, "".join(out), tests, warnings, self.project.folder)

    def kill(self) -> None:
        """End all that was started: each agent leads a session, and so do its workers."""
        for pid in [*self.project.processes(), *(agent.pid for agent in self.agents)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def torchrun(
    project: Project,
    *arguments: str,
    agents: int = 2,
    each: int = 2,
    environment: dict[str, str] | None = None,
    folders: list[str] | None = None,
    prefix: Callable[[int], list[str]] | None = None,
) -> Torchrun:
    """Start agents that run pytest in a project's folder, each with so many processes; end them with ``finish``.

    ``prefix`` returns the words before the command of an agent.
    """
    (project.folder / "reports.jsonl").write_text("")
    reserved = contextlib.ExitStack()
    _, port = reserved.enter_context(reserved_port())
    started = []
    for node in range(agents):
        command = [
            *(prefix(node) if prefix else []),
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--nnodes={agents}", f"--nproc-per-node={each}", f"--node-rank={node}"),
            *("--master-addr=127.0.0.1", f"--master-port={port}"),
            *project.command("--launcher=torchrun", *arguments)[1:],
        ]
        variables = {**project.environment(), **(environment or {})}
        folder = folders[node] if folders else None
        started.append(project.spawn(command, variables, folder, new_session=True))
    return Torchrun(project, started, reserved)


def run_under(launcher: str, project: Project, *arguments: str) -> Inner:
    """Run pytest in a project under a launcher."""
    if launcher == "torchrun":
        return torchrun(project, *arguments).finish()
    if launcher == "ray":
        pytest.importorskip("ray")
    return project.run(f"--launcher={launcher}", *arguments)


def one_run(files: str | Mapping[str, str], *arguments: str, launchers: Sequence[Any] = ()) -> Any:
    """Return the fixture of a module whose tests share one inner run of these files, or of ``test_inner.py`` alone.

    With launchers, the tests run under each of them.
    """

    @pytest.fixture(scope="module", params=launchers or None)
    def inner(request: pytest.FixtureRequest, module_project: Project) -> Inner:
        for name, text in ({"test_inner.py": files} if isinstance(files, str) else files).items():
            module_project.write(name, text)
        return run_under(request.param, module_project, *arguments) if launchers else module_project.run(*arguments)

    return inner


def by_hand(
    project: Project, *arguments: str, count: int = 3, prefix: Callable[[int], list[str]] | None = None, **more: str
) -> Torchrun:
    """Start the processes of a run without torchrun's agent, as a script for Slurm does; end them with ``finish``.

    ``prefix`` returns the words before the command of a process, ``more`` are variables for all of them.
    """
    (project.folder / "reports.jsonl").write_text("")
    reserved = contextlib.ExitStack()
    _, port = reserved.enter_context(reserved_port())
    variables = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}
    started = [
        project.spawn(
            [*(prefix(rank) if prefix else []), *project.command("--launcher=torchrun", *arguments)],
            {**project.environment(), **variables, "RANK": str(rank)},
        )
        for rank in range(count)
    ]
    return Torchrun(project, started, reserved)
