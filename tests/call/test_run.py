"""``everyrank.run``: a function on each rank of a world, without a test."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import everyrank
import pytest
import torch
import torch.distributed as dist
from everyrank.call import run as run_module
from everyrank.declare.declaration import _mark


def _rank_and_sum() -> tuple[int, torch.Tensor]:
    mine = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(mine)
    return dist.get_rank(), mine


def test_a_call_returns_what_the_function_returned_on_each_rank() -> None:
    found = everyrank.run(_rank_and_sum, ranks=3)
    assert [rank for rank, _ in found] == [0, 1, 2]
    assert all(total.tolist() == [3.0, 3.0] for _, total in found)


def test_a_local_function_sees_the_callers_variables_and_changes_none_of_them() -> None:
    seen = [5]
    assert everyrank.run(lambda: seen.append(everyrank.current_world().rank) or list(seen), 2) == [[5, 0], [5, 1]]
    assert seen == [5]


def test_values_come_back_by_a_path_that_is_not_unicode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"tmp-\xe4")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert everyrank.run(dist.get_rank) == [0, 1]


def test_without_a_group_torch_distributed_is_not_initialized() -> None:
    assert everyrank.run(dist.is_initialized, group=False) == [False, False]


class _CountsItsCopies:
    copies = 0

    def __call__(self) -> int:
        return dist.get_rank()

    def __reduce__(self) -> Any:
        _CountsItsCopies.copies += 1
        return _CountsItsCopies, ()


def test_forks_have_the_function_itself_and_no_copy() -> None:
    assert everyrank.run(_CountsItsCopies()) == [0, 1]
    assert _CountsItsCopies.copies == 0


def test_a_call_leaves_no_folder_of_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    everyrank.run(_rank_and_sum)
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_are_no_forks_import_the_function() -> None:
    assert [rank for rank, _ in everyrank.run(_rank_and_sum, launcher="spawn")] == [0, 1]


def _fails_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("no such token")
    dist.barrier()


def _is_killed() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _nests() -> None:
    everyrank.run(_rank_and_sum)


def _waits_for_nobody() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


@pytest.mark.parametrize(
    ("function", "kind", "texts"),
    [
        (
            partial(_fails_on, 1),
            everyrank.WorldFailed,
            ["rank 1 of 2 failed first", "ValueError: no such token", "everyrank.run(_fails_on, ranks=2)"],
        ),
        (_is_killed, everyrank.RankLost, ["rank 1 of 2 was killed by SIGKILL"]),
        (_waits_for_nobody, everyrank.WorldTimeout, ["rank 1 ended its test without reaching this barrier"]),
    ],
)
def test_a_call_raises_the_verdict(function: Callable[[], Any], kind: type[Exception], texts: list[str]) -> None:
    with pytest.raises(everyrank.WorldFailed) as raised:
        everyrank.run(function)
    assert raised.type is kind
    assert [text for text in texts if text not in str(raised.value)] == []


def test_a_roll_call_ends_where_the_call_begins() -> None:
    with pytest.raises(everyrank.WorldTimeout) as raised:
        everyrank.run(_waits_for_nobody)
    roll_call = str(raised.value).partition("roll call")[2]
    assert "_waits_for_nobody at " in roll_call
    assert "test_a_roll_call_ends_where_the_call_begins" not in roll_call
    assert "_pytest" not in roll_call


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (_rank_and_sum, {"ranks": 0}, r"1 or more, not 0: write everyrank.run\(_rank_and_sum, ranks=4\)"),
        (_rank_and_sum, {"ranks": [2, 4]}, r"ranks must be a whole number of ranks, 1 or more, not \[2, 4\]: write"),
        (_rank_and_sum, {"seed": "7"}, "seed must be a whole number, not '7'"),
        (_rank_and_sum, {"colour": 1}, "takes no 'colour': it takes ranks, group, launcher, .*timeout and fresh"),
        (_rank_and_sum, {"timout": 1}, r"takes no 'timout': did you mean timeout\?"),
        (_rank_and_sum, {"size": 4}, r"takes no 'size': did you mean ranks\?"),
        (_rank_and_sum, {"launcher": "none"}, "must be one of fork, spawn, torchrun, ray, not 'none'"),
        (_rank_and_sum, {"backend": "nope"}, "the backend 'nope' is not known"),
        (4, {}, "calls a function on each rank, and 4 is none: write"),
        (_fails_on, {}, r"calls _fails_on without arguments \(missing a required argument: 'rank'\): pass functools"),
    ],
)
def test_misuse_is_one_sentence(function: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(everyrank.MisuseError, match=text):
        everyrank.run(function, **options)


def test_a_call_takes_all_that_the_mark_takes() -> None:
    mark = list(inspect.signature(_mark).parameters)[1:]
    assert list(inspect.signature(everyrank.run).parameters)[5:-1] == mark


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (lambda: lambda: 1, {}, "<lambda> returned a value of function that cannot be pickled"),
        (lambda: 1, {"launcher": "spawn"}, "define it at the top level of a module"),
        (_nests, {}, r"worlds do not nest, and this process is a rank of 'everyrank.run\(_nests\)'"),
    ],
)
def test_misuse_that_only_a_rank_can_see_is_in_the_verdict(
    function: Callable[[], Any], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(everyrank.WorldFailed, match=text):
        everyrank.run(function, **options)


class _TakesTwo(Exception):
    """pickle calls it with the one argument that it kept."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)


def _two() -> _TakesTwo | None:
    return _TakesTwo("no such token", 1) if dist.get_rank() else None


def _ddp() -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            _two,
            r"_two returned a value of _TakesTwo that cannot be unpickled \(TypeError: .*'rank'\): return plain data",
        ),
        (_ddp, r"_ddp returned a value of DistributedDataParallel that cannot be unpickled \(\w+Error: "),
    ],
)
def test_a_value_that_does_not_unpickle_is_refused_in_one_sentence(function: Callable[[], Any], text: str) -> None:
    with pytest.raises(everyrank.MisuseError, match=text):
        everyrank.run(function)


class _BreaksTheSession:
    """Stands in for any error in what pytest does around the call."""

    def pytest_everyrank_result(self) -> None:
        raise OSError("the disk is gone")


class _TurnsTheSessionRed:
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("plugin", "text"),
    [(_BreaksTheSession, "INTERNAL_ERROR"), (_TurnsTheSessionRed, "TESTS_FAILED")],
)
def test_a_session_that_does_not_end_well_never_returns(
    plugin: type, text: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare = run_module._prepareconfig
    monkeypatch.setattr(
        run_module, "_prepareconfig", lambda arguments, plugins: prepare(arguments, [*plugins, plugin()])
    )
    with pytest.raises(RuntimeError, match=text) as raised:
        everyrank.run(dist.get_rank)
    assert plugin is _TurnsTheSessionRed or "the disk is gone" in repr(raised.value.__cause__)
    assert "INTERNALERROR>" not in capfd.readouterr().err


def test_a_call_that_leaves_pytest_leaves_the_callers_too() -> None:
    with pytest.raises(pytest.exit.Exception, match="rank 0: enough"):
        everyrank.run(partial(pytest.exit, "enough"))


def test_a_call_that_is_expected_to_fail_is_so_for_its_caller() -> None:
    with pytest.raises(pytest.xfail.Exception, match="a known fault"):
        everyrank.run(partial(pytest.xfail, "a known fault"))


def test_a_call_that_needs_more_gpus_than_there_are_is_skipped() -> None:
    with pytest.raises(pytest.skip.Exception, match="needs 99 GPUs"):
        everyrank.run(_rank_and_sum, gpus=99)


def test_what_ranks_print_comes_to_the_callers_stream(capsys: pytest.CaptureFixture[str]) -> None:
    everyrank.run(lambda: print("hello"))
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] hello", "[rank 1] hello"]


def _warns() -> None:
    warnings.warn("the ranks look odd", stacklevel=1)


def test_a_warning_of_ranks_comes_once_to_the_caller() -> None:
    with pytest.warns(UserWarning, match="the ranks look odd") as warned:
        everyrank.run(_warns)
    assert len(warned) == 1


def test_a_leak_is_reported_at_the_callers_function(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(everyrank.LeakWarning, match="EVERYRANK_LEFT") as warned:
        everyrank.run(_leaves_a_variable)
    assert (warned[0].filename, warned[0].lineno) == (__file__, _leaves_a_variable.__code__.co_firstlineno)


def _leaves_a_variable() -> None:
    os.environ["EVERYRANK_LEFT"] = "1"


def test_settings_of_pytest_are_no_settings_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    assert everyrank.run(lambda: os.environ["PYTEST_ADDOPTS"]) == ["--no-such-option"] * 2


_TYPED = """
import torch.distributed as dist, everyrank
def fails():
    if dist.get_rank():
        raise ValueError("no such token")

def hangs():
    if dist.get_rank():
        dist.barrier()

for function in fails, hangs:
    try: everyrank.run(function)
    except everyrank.WorldFailed as error: print(error)

"""


@pytest.mark.parametrize("source", ["stdin", "string"])
def test_code_that_was_typed_is_named_by_its_line(source: str) -> None:
    """It has no file, and Python 3.11 keeps no text of it."""
    typed, arguments = ("", ["-c", _TYPED]) if source == "string" else (_TYPED, ["-i"])
    command = [sys.executable, *arguments]
    printed = subprocess.run(command, input=typed, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"<{source}\S*>:\d+: ValueError", printed)
    assert re.search(rf"rank 0 ended its test without reaching this barrier \(<{source}\S*>:\d+\)", printed)
    assert re.search(rf"rank 1 is waiting in barrier at <{source}\S*>:\d+", printed)


# Each line is one write: two ranks print into one pipe.
_SCRIPT = r"""
import re
import threading
import torch.distributed as dist
import everyrank

def fails():
    if dist.get_rank() == 1:
        raise ValueError("no such token")
    dist.barrier()

print(f"returned {everyrank.run(lambda: dist.get_rank() * 10)}\n", end="")
print(f"without a group {everyrank.run(dist.is_initialized, group=False)}\n", end="")
try:
    everyrank.run(fails)
except Exception as error:
    print(f"raised {type(error).__name__} {'no such token' in str(error)}\n", end="")
class TakesTwo(Exception):
    def __init__(self, text, rank):
        super().__init__(text)

def two():
    return TakesTwo("no such token", 1) if dist.get_rank() else None

def lock():
    return threading.Lock() if dist.get_rank() else None

for function in two, lock:
    try:
        everyrank.run(function)
    except (everyrank.MisuseError, everyrank.WorldFailed) as error:
        print(re.search("\w+ returned a value .*\n", f"{error}\n")[0], end="")
try:
    everyrank.run(fails, ranks=7)
except everyrank.MisuseError as error:
    print(f"{error}\n", end="")
"""


def test_in_a_script_that_torchrun_has_started_its_processes_are_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert sorted(re.sub(r"Error: .*\)", "Error: ...)", line) for line in ran.stdout.splitlines()) == [
        *["lock returned a value of lock that cannot be pickled (TypeError: ...): return plain data or tensors"] * 2,
        "raised ValueError True",
        "raised WorldFailed True",
        *["returned [0, 10]"] * 2,
        *["torchrun has started 2 ranks, and the call asks for 7: leave `ranks` out"] * 2,
        *["two returned a value of TakesTwo that cannot be unpickled (TypeError: ...): return plain data or tensors"]
        * 2,
        *["without a group [False, False]"] * 2,
    ]
