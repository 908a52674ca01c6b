"""What ``everyrank doctor`` expected of a machine, and that a world with a wrong end is seen."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everyrank
import pytest
from everyrank.doctor import command, software, system, worlds
from everyrank.doctor.answer import BAD, NOTE, OK, Answer, lines
from everyrank.errors import RankLost, WorldFailed, WorldTimeout
from everyrank.launch import native

Patch = pytest.MonkeyPatch


def test_on_this_machine_it_runs_four_worlds_and_each_ends_as_it_must() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "everyrank", "doctor"], capture_output=True, text=True, check=False, timeout=300
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    looked, _, tried = asked.stdout.partition("\nWorlds of 4:\n")
    assert "BAD" not in looked
    assert [line.split()[0] for line in tried.splitlines() if line.startswith("  ")] == ["ok"] * 4
    assert tried.splitlines()[-1].startswith("this machine runs multi-rank tests")


def test_what_is_to_be_done_stands_below_the_answer() -> None:
    given = [Answer("files", BAD, "few " * 25, "ulimit -n 4096"), Answer("a long name", OK, "yes")]
    assert lines(given) == [
        "   BAD  files        " + ("few " * 20).strip(),
        " " * 21 + ("few " * 5).strip(),
        " " * 21 + "-> ulimit -n 4096",
        "    ok  a long name  yes",
    ]


@pytest.mark.parametrize(
    ("limits", "state", "expected", "advice"),
    [
        ((1024, 4096), OK, "may open 1024 files", ""),
        ((256, 4096), OK, "worlds of up to 39 ranks", ""),
        ((64, 4096), BAD, "worlds of up to 0 ranks", "ulimit -n 4096"),
        ((64, 64), BAD, "worlds of up to 0 ranks", "docker run --ulimit nofile=4096, or as root"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), OK, "any number of files", ""),
    ],
)
def test_few_descriptors(monkeypatch: Patch, limits: tuple[int, int], state: str, expected: str, advice: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    found = system.files()
    assert (found.state, found.advice) == (state, advice)
    assert expected in found.text


@pytest.mark.parametrize("folder", ["", "pids"], ids=["version 2", "version 1"])
def test_a_container_that_may_start_few_processes(monkeypatch: Patch, tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "pids.max").write_text("100\n")
    (tmp_path / folder / "pids.current").write_text("30\n")
    left = system._left_of_container(tmp_path)
    assert left == 70
    monkeypatch.setattr(system, "_left_of_user", lambda: None)
    monkeypatch.setattr(system, "_left_of_container", lambda: left)
    found = system.processes()
    assert (found.state, found.text) == (BAD, "this container may start 70 more, threads counted")


def test_a_user_with_many_processes(monkeypatch: Patch, tmp_path: Path) -> None:
    mine = len(os.listdir("/proc/self/task"))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (4096, 4096))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    left = system._left_of_user()
    assert left is not None
    assert left <= 4096 - mine
    monkeypatch.setattr(system, "_left_of_container", lambda: None)
    monkeypatch.setattr(system, "_left_of_user", lambda: 20)
    assert system.processes().text == "this user may start 20 more, threads counted"


def test_a_container_without_a_limit(tmp_path: Path) -> None:
    (tmp_path / "pids.max").write_text("max\n")
    assert system._left_of_container(tmp_path) is None


def test_little_shared_memory(monkeypatch: Patch) -> None:
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1 << 24, 1 << 23, 1 << 23))
    found = system.shared_memory()
    assert (found.state, found.advice) == (NOTE, "docker run --shm-size=1g")
    assert "8 MB free" in found.text


def test_a_machine_without_a_loopback_interface(monkeypatch: Patch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0")])
    assert system.loopback().state == BAD

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refused)
    assert "Cannot assign requested address" in system.loopback().text


def test_folders_that_nobody_can_use(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("EVERYRANK_LEASES", str(tmp_path / "link"))
    temp, held = system.folders()
    assert (temp.state, held.state) == (BAD, BAD)
    assert "is a link" in held.text


def test_stacks_without_a_reader_and_with_one_that_may_not(monkeypatch: Patch) -> None:
    monkeypatch.setattr(native, "reader_path", lambda: "")
    assert system.stacks().advice == "pip install pystack"
    monkeypatch.setattr(native, "reader_path", lambda: "/usr/bin/false")
    found = system.stacks()
    assert found.state == NOTE
    assert "pystack cannot read them: (not known: pystack printed nothing)" in found.text


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PYTEST_ADDOPTS", "-x -p no:everyrank", "PYTEST_ADDOPTS turns everyrank off"),
        ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1", "pytest loads no plugin that is not named"),
    ],
)
def test_a_plugin_that_is_switched_off(monkeypatch: Patch, name: str, value: str, expected: str) -> None:
    for variable in ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        monkeypatch.delenv(variable, raising=False)
    assert software.plugin().state == OK
    monkeypatch.setenv(name, value)
    found = software.plugin()
    assert found.state == NOTE
    assert expected in found.text


def test_a_torch_that_starts_threads_and_one_that_is_broken(monkeypatch: Patch) -> None:
    assert software.fork().state == OK
    monkeypatch.setattr(software, "_THREADS", "print(3)")
    assert "starts threads (3)" in software.fork().text
    monkeypatch.setattr(software, "_THREADS", "import no_such_torch")
    found = software.fork()
    assert found.state == BAD
    assert "No module named 'no_such_torch'" in found.text


def test_an_interpreter_without_torch(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (found,) = software.torch()
    assert found.state == BAD
    assert "it cannot be imported: ModuleNotFoundError" in found.text


def _returns(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _raises(error: Exception) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> None:
        raise error

    return run


SUM, KILLED, LEAVES = worlds.TRIALS


@pytest.mark.parametrize(
    ("trial", "run", "expected"),
    [
        (SUM, _returns([6.0, 6.0, 6.0, 6.0]), ""),
        (SUM, _returns([6.0, 6.0, 6.0, 3.0]), "it ended well, and its ranks returned [6.0, 6.0, 6.0, 3.0]"),
        (SUM, _raises(WorldTimeout("the world missed its deadline")), "WorldTimeout: the world missed its deadline"),
        (KILLED, _raises(RankLost("rank 1 was killed by SIGKILL")), ""),
        (KILLED, _raises(RankLost("rank 2 was killed by SIGKILL")), "RankLost: rank 2"),
        (KILLED, _raises(WorldFailed("rank 1: SIGKILL")), "WorldFailed: rank 1"),
        (KILLED, _returns([None] * 4), "it ended well, and its ranks returned [None, None, None, None]"),
        (LEAVES, _raises(WorldTimeout("rank 2 ended; the world of 4 was deadlocked")), ""),
        (LEAVES, _raises(WorldTimeout("the world missed its deadline")), "WorldTimeout: the world missed"),
    ],
)
def test_a_world_that_ends_in_another_way_is_seen(
    monkeypatch: Patch, trial: worlds.Trial, run: Callable[..., Any], expected: str
) -> None:
    monkeypatch.setattr(everyrank, "run", run)
    found = trial.run(None)
    assert found.state == (BAD if expected else OK)
    assert expected in found.text


def test_no_world_is_tried_on_a_machine_that_cannot(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "_looks", lambda: iter([Answer("gloo", BAD, "none", "install another build")]))
    monkeypatch.setattr(worlds, "run", _raises(AssertionError("a world was tried")))
    assert command.main([]) == 1
    assert "no world was tried: mend what is BAD first" in capsys.readouterr().out


def test_a_wrong_world_is_the_exit_code(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "_looks", lambda: iter([Answer("gloo", OK, "worlds on the CPU")]))
    monkeypatch.setattr(worlds, "run", _returns([Answer("a sum", OK, "0.1 s"), Answer("a kill", BAD, "it hung")]))
    assert command.main([]) == 1
    assert "1 of the worlds ended as they must not" in capsys.readouterr().out
