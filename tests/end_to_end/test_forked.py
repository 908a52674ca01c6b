"""A forked inner run is what a new interpreter would be, and its server never outlives the tests."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import ForkedRun, ForkServers
from tests.inner import Project

pytestmark = pytest.mark.group("clusters")

#: A plugin that writes what a program can see of its own process after collection, with what tests imported.
LOOKS = """
    import __main__, atexit, json, os, random, signal, sys, tempfile, threading

    forked = "torch" in sys.modules

    def target(fd):
        return os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]

    def split(name):
        with open(f"/proc/self/{name}") as file:
            return [line for line in file.read().split(chr(0)) if line]

    def pytest_collection_finish():
        seen = {
            "argv": [sys.argv, sys.orig_argv], "path": sys.path, "flags": repr(sys.flags), "cwd": os.getcwd(),
            "main": [sys.executable, __main__.__name__, getattr(__main__.__spec__, "name", "")],
            "left": sorted(vars(__main__)),
            "environ": dict(os.environ), "proc": [split("cmdline"), sorted(split("environ"))],
            "fds": {fd: target(fd) for fd in os.listdir("/proc/self/fd") if int(fd) < 3},
            "signals": {number: str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()},
            "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "umask": os.umask(0o22),
            "group": [os.getpgrp(), os.getsid(0)], "threads": threading.active_count(), "temp": tempfile.gettempdir(),
            "streams": [
                [s.encoding, s.errors, s.line_buffering, s.write_through, s.seekable(), s.name, s.mode, str(s.buffer)]
                for s in (sys.__stdin__, sys.__stdout__, sys.__stderr__)
            ],
            "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
        }
        with open(f"seen-{os.environ.get('PYTEST_XDIST_WORKER', 'run')}.json", "w") as file:
            json.dump(seen, file)
        with open("forked", "w") as file:
            file.write(str(forked))
        with open("drawn", "w") as file:
            print(random.random(), file=file)
            if "numpy" in sys.modules:
                print(sys.modules["numpy"].random.random(), file=file)

    def pytest_sessionfinish():
        modules = sorted(item for item in sys.modules.items() if item[0].startswith("everyrank"))
        ours = {name: str(type(module.__loader__)) for name, module in modules}
        with open(f"ours-{os.environ.get('PYTEST_XDIST_WORKER', 'run')}.json", "w") as file:
            json.dump(ours, file)

    @atexit.register
    def note():
        open("ended", "w").close()
"""


#: A run of a multi-rank test, of which each process imports all that is imported for such a test.
ON_RANKS = "import torch\ndef test_on_a_rank(world): pass"


def project_of(folder: Path, servers: ForkServers | None, text: str) -> Project:
    project = Project(folder, servers)
    project.marker = "the same in all"
    project.write("looks.py", LOOKS)
    project.write("test_inner.py", text)
    return project


@pytest.mark.smoke
def test_a_fork_sees_what_a_new_interpreter_sees(tmp_path: Path, fork_servers: ForkServers) -> None:
    seen = []
    for chosen in (None, fork_servers):
        folder = tmp_path / "project"
        project = project_of(folder.mkdir() or folder, chosen, ON_RANKS)
        process = project.start("-p", "looks")
        assert isinstance(process, ForkedRun if chosen else subprocess.Popen)
        inner = project.finish(process)
        assert inner.code == 0, inner.out
        assert (folder / "ended").exists()
        seen.append([json.loads((folder / f"{name}-run.json").read_text()) for name in ("seen", "ours")])
        folder.rename(tmp_path / f"{len(seen)}")
    assert seen[1] == seen[0]


def test_a_worker_of_a_fork_sees_what_that_of_a_new_interpreter_sees(
    tmp_path: Path, fork_servers: ForkServers
) -> None:
    seen = []
    for chosen in (None, fork_servers):
        folder = tmp_path / "project"
        project = project_of(folder.mkdir() or folder, chosen, ON_RANKS)
        inner = project.run("-p", "looks", "-n1", "--testrunuid=one")
        assert inner.code == 0, inner.out
        assert (folder / "forked").read_text() == str(bool(chosen))
        seen.append([json.loads((folder / f"{name}-gw0.json").read_text()) for name in ("seen", "ours")])
        folder.rename(tmp_path / f"{len(seen)}")
    (own, imported), (own_of_fork, imported_in_fork) = seen
    assert own_of_fork == own
    assert imported.items() <= imported_in_fork.items()  # a worker has no live line, but its server has


#: Prints what a program can see of how it was started.
SAW = """
import json, sys
print(json.dumps([sys.argv, sys.path, sys.orig_argv, __name__, sorted(globals()), globals().get("__file__")]))
sys.exit(3)
"""


@pytest.mark.smoke
@pytest.mark.parametrize("arguments", [("-c", SAW, "1"), ("some/script.py", "2"), ("-u", "-B", "-m", "some.script")])
def test_a_fork_runs_programs_and_scripts_as_a_new_interpreter_does(
    tmp_path: Path, fork_servers: ForkServers, arguments: tuple[str, ...]
) -> None:
    seen = []
    for chosen in (None, fork_servers):
        project = Project(tmp_path, chosen)
        project.write("some/script.py", SAW)
        done = project.python(*arguments)
        assert (done.returncode, done.stderr) == (3, "")
        seen.append(json.loads(done.stdout))
    assert seen[1] == seen[0]


def test_forks_draw_different_numbers(project: Project) -> None:
    project.write("looks.py", LOOKS)
    project.write("test_inner.py", "import torch")
    drawn = []
    for _ in range(2):
        project.run("-p", "looks")
        drawn.append((project.folder / "drawn").read_text().split())
    (python, numpy), (pythons_next, numpys_next) = drawn
    assert python != pythons_next
    assert numpy != numpys_next


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_fork_ends_by_a_signal_as_any_process(project: Project, number: signal.Signals) -> None:
    project.write(
        "test_inner.py", "import threading\ndef test_waits():\n    open('up', 'w')\n    threading.Event().wait()"
    )
    process = project.start()
    assert isinstance(process, ForkedRun)
    while not (project.folder / "up").exists():
        assert process.poll() is None, process.communicate()
        os.sched_yield()
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0)
    process.send_signal(number)
    out, _ = process.communicate()
    assert process.returncode == (pytest.ExitCode.INTERRUPTED if number == signal.SIGINT else -number), out
    project.assert_nothing_left()


@pytest.mark.parametrize("variable", ["PYTHONHASHSEED", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"])
def test_startup_code_and_variables_that_may_be_read_early_get_a_new_interpreter(
    project: Project, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "2")
    process = project.start()
    assert isinstance(process, subprocess.Popen)
    project.finish(process)
    monkeypatch.undo()
    project.write("sitecustomize.py", "")
    process = project.start()
    assert isinstance(process, subprocess.Popen)
    project.finish(process)


#: Starts a server and two runs: one that has ended, and one that waits.
OWNER = """
    import pathlib, sys, threading
    from tests.forked import ForkServers
    from tests.inner import Project, outer_environment

    project = Project(pathlib.Path(sys.argv[1]), ForkServers(outer_environment()))
    project.run("-k", "nothing")
    (server,) = project.servers._servers.values()
    print(server.pid, flush=True)
    threading.Event().wait()
"""


def test_a_server_dies_with_its_owner(tmp_path: Path) -> None:
    program = tmp_path / "owner.py"
    project = Project(tmp_path)
    project.write("owner.py", OWNER)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, program, tmp_path],
        env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)},  # what it leaves is removed with that
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout
        server = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
        assert select.select([server], [], [], 60)[0]
        os.close(server)
