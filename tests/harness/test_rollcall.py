"""The roll call: read stacks, group ranks and render the groups, all on made-up stacks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from everyrank.launch import native, processes
from everyrank.rank import group_calls, witness
from everyrank.rollcall import rollcall
from everyrank.rollcall.blame import ENDED, Blame, blame
from everyrank.rollcall.rollcall import Stance
from everyrank.stack.frames import Frame

HERE = "/home/me/test_x.py"
TORCH = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
WRAPPER = Frame("/venv/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", 81, "wrapper")
PYTEST = Frame("/venv/lib/python3.12/site-packages/_pytest/python.py", 166, "pytest_pyfunc_call")

REDUCES = (Frame(TORCH, 3010, "all_reduce"), WRAPPER, Frame(HERE, 40, "test_loop"), PYTEST)
RECEIVES = (Frame(TORCH, 2200, "recv"), WRAPPER, Frame(HERE, 38, "test_loop"), PYTEST)
LOOPS = (Frame(HERE, 7, "step"), Frame(HERE, 38, "test_loop"), PYTEST)

DUMP = f"""\
Thread 0x00007f11 (most recent call first):
  File "{threading.__file__}", line 359 in wait
  File "{threading.__file__}", line 1032 in _bootstrap

Current thread 0x00007f12 (most recent call first):
  File "/home/me/a folder, odd/test_x.py", line 12 in <lambda>
  File "/home/me/test_x.py", line ??? in test_loop
"""


@pytest.fixture(autouse=True)
def _no_native_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollcall, "reader_path", lambda: "/usr/bin/pystack")


def by_evidence(*stances: Stance) -> Blame:
    return blame([stance.evidence for stance in stances])


def folded(*stances: Stance) -> list[str]:
    return rollcall.folded(stances, by_evidence(*stances))


def rendered(*stances: Stance) -> str:
    return rollcall.render(list(stances), by_evidence(*stances))


# --- reading ---------------------------------------------------------------------------------------------


def test_the_main_thread_comes_last_in_a_dump() -> None:
    assert rollcall.parse(DUMP)[0] == (
        Frame("/home/me/a folder, odd/test_x.py", 12, "<lambda>"),
        Frame("/home/me/test_x.py", 0, "test_loop"),
    )


def test_of_several_dumps_the_last_counts() -> None:
    again = 'Current thread 0x00007f12 (most recent call first):\n  File "/home/me/test_x.py", line 9 in later\n'
    assert rollcall.parse(DUMP + again)[0] == (Frame("/home/me/test_x.py", 9, "later"),)


@pytest.mark.parametrize("text", ["", "Fatal Python error: Aborted\n", '  File "/a.py", line 1 in f\n', "\ufffd\x00"])
def test_no_thread_is_no_stack(text: str) -> None:
    assert rollcall.parse(text) == ((), ())


def test_a_dump_cut_off_in_the_middle_is_read_as_far_as_it_goes() -> None:
    assert rollcall.parse(DUMP[:-30])[0] == (Frame("/home/me/a folder, odd/test_x.py", 12, "<lambda>"),)


def test_names_that_are_not_ascii_are_read_as_they_are(tmp_path: Path) -> None:
    """Whether a file belongs to the user, and the way to it, depend on its name."""
    path = tmp_path / "naïve € 😀" / "test_x.py"
    path.parent.mkdir()
    path.write_text(
        "import faulthandler, sys\ndef träge(): faulthandler.dump_traceback(sys.stdout, all_threads=True)\nträge()\n"
    )
    dump = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout
    assert dump.isascii()
    dumped = dump.replace("Current thread", "Thread").replace("Stack (most", "Thread 0x1 (most")
    assert rollcall.parse(dumped)[0] == (Frame(str(path), 2, "träge"), Frame(str(path), 3, "<module>"))


def test_threads_that_run_the_users_code_are_kept_and_only_those_of_the_last_dump() -> None:
    frames = f'  File "{TORCH}", line 3 in wait\n  File "{HERE}", line 5 in serve\n'
    call = f"Thread 0x00007f13 (most recent call first):\n{frames}\n"
    assert rollcall.parse(DUMP)[1] == ()
    assert rollcall.parse(DUMP + call + DUMP)[1] == ((Frame(TORCH, 3, "wait"), Frame(HERE, 5, "serve")),)
    assert rollcall.parse(call + DUMP + DUMP)[1] == ()


# --- where a rank stands ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stance", "doing"),
    [
        (Stance(0, REDUCES), "waiting in all_reduce at test_x.py:40"),
        (Stance(0, LOOPS), "in step at test_x.py:7"),
        (Stance(0, LOOPS, state="stopped"), "in step at test_x.py:7, stopped"),
        (Stance(0, ()), "not answering (no stack available)"),
        (Stance(0, (), state="stopped"), "not answering (no stack available), stopped"),
    ],
)
def test_a_rank_stands_where_the_users_code_called(stance: Stance, doing: str) -> None:
    assert stance.doing == doing


PACKAGES = "/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        ([("all_reduce", "a.py"), ("clip_grad_norm_", "a.py"), ("_no_grad_wrapper", "a.py")], "clip_grad_norm_"),
        ([("all_gather_object", "a.py"), ("save", "a.py"), ("inner_func", "a.py")], "save"),
        ([("wait_tensor", "a.py"), ("__torch_dispatch__", "a.py")], "wait_tensor"),
        ([("unshard", "a.py"), ("_pre_forward", "a.py"), ("_call_impl", "torch/nn/modules/module.py")], "forward"),
    ],
)
def test_what_a_library_calls_inside_is_named_as_users_know_it(inner: list[tuple[str, str]], name: str) -> None:
    stack = tuple(Frame(f"{PACKAGES}/{file}", 1, function) for function, file in inner)
    assert Stance(0, (*stack, Frame(HERE, 40, "test_loop"))).doing == f"waiting in {name} at test_x.py:40"


def test_a_function_with_a_meaningless_name_is_named_by_the_only_call_of_the_users_line(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text("total = reduced.sum()\n")
    stack = (Frame(f"{PACKAGES}/a.py", 1, "wait_tensor"), Frame(f"{PACKAGES}/a.py", 9, "__torch_dispatch__"))
    assert Stance(0, (*stack, Frame(str(file), 1, "test_loop"))).doing.startswith("waiting in sum at ")


def test_a_constructor_is_named_by_its_class(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "a.py"
    library.parent.mkdir()
    library.write_text("class Parallel:\n    def __init__(self):\n        wait()\n")
    stack = (
        Frame(f"{PACKAGES}/b.py", 1, "_verify"),
        Frame(str(library), 3, "__init__"),
        Frame(HERE, 40, "test_loop"),
    )
    assert Stance(0, stack).doing == "waiting in Parallel at test_x.py:40"


def test_a_rank_that_imports_does_not_wait() -> None:
    stack = (
        Frame("<frozen importlib._bootstrap_external>", 1, "get_data"),
        Frame(f"{PACKAGES}/torch/_dynamo/__init__.py", 3, "<module>"),
        Frame("<frozen importlib._bootstrap>", 1, "_find_and_load"),
        Frame(f"{PACKAGES}/torch/distributed/fsdp.py", 7, "__init__"),
        Frame(HERE, 40, "test_loop"),
    )
    stance = Stance(1, stack)
    assert stance.doing == "importing torch._dynamo at test_x.py:40"
    assert stance.sentence([1]) == "rank 1 is importing torch._dynamo at test_x.py:40"
    assert stance.evidence.waits is False


def test_a_stack_without_the_users_code_is_described_by_its_innermost_frame() -> None:
    assert Stance(0, (PYTEST,)).doing == "waiting in pytest_pyfunc_call at _pytest/python.py:166"


# --- grouping --------------------------------------------------------------------------------------------


def test_the_odd_one_out_comes_first() -> None:
    stances = [Stance(0, REDUCES), Stance(1, REDUCES), Stance(2, RECEIVES), Stance(3, REDUCES)]
    assert folded(*stances) == [
        "rank 2 is waiting in recv at test_x.py:38",
        "ranks 0,1,3 are waiting in all_reduce at test_x.py:40",
    ]


def test_of_two_ranks_the_one_that_does_not_wait_comes_first() -> None:
    assert folded(Stance(0, REDUCES), Stance(1, LOOPS))[0] == "rank 1 is in step at test_x.py:7"


def test_groups_come_by_rank_after_those_to_blame() -> None:
    stances = [Stance(0, REDUCES), Stance(1, RECEIVES), Stance(2, LOOPS)]
    assert [group[0].rank for _, group in rollcall.groups(stances, by_evidence(*stances))] == [2, 0, 1]
    assert [group[0].rank for _, group in rollcall.groups(stances, Blame())] == [0, 1, 2]


def test_a_stopped_rank_is_not_of_the_group_that_stands_at_the_same_line() -> None:
    stances = [Stance(0, LOOPS), Stance(1, LOOPS, state="stopped"), Stance(2, LOOPS)]
    assert "rank 1 is in step at test_x.py:7, stopped" in folded(*stances)


def test_ranks_that_called_from_different_lines_are_different_groups() -> None:
    elsewhere = (REDUCES[0], WRAPPER, Frame(HERE, 41, "test_loop"), PYTEST)
    assert len(rollcall.groups([Stance(0, REDUCES), Stance(1, elsewhere)], Blame())) == 2


# --- rendering -------------------------------------------------------------------------------------------


def test_each_group_shows_one_stack_down_to_the_test() -> None:
    assert rendered(Stance(0, REDUCES), Stance(1, LOOPS), Stance(2, REDUCES)).splitlines() == [
        "rank 1 is in step at test_x.py:7",
        "ranks 0,2 are waiting in all_reduce at test_x.py:40",
        "",
        "rank 1, innermost frame first:",
        "  step at test_x.py:7",
        "  test_loop at test_x.py:38",
        "",
        "ranks 0,2, innermost frame first:",
        "  all_reduce at torch/distributed/distributed_c10d.py:3010",
        "  wrapper at torch/distributed/c10d_logger.py:81",
        "  test_loop at test_x.py:40",
    ]


def test_other_threads_in_the_users_code_are_listed_by_location() -> None:
    """A rank that waits for an RPC waits for a thread of another rank."""
    serves = (Frame(TORCH, 3, "wait"), Frame(HERE, 5, "serve"))
    stances = [
        Stance(0, REDUCES, beside=(serves, serves)),
        Stance(1, LOOPS),
        Stance(2, REDUCES, beside=(serves, (Frame(HERE, 9, "once"),))),
    ]
    lines = rendered(*stances).splitlines()
    assert [line for line in lines if "thread" in line] == [
        "  3 other threads of ranks 0,2 are waiting in wait at test_x.py:5",
        "  another thread of rank 2 is in once at test_x.py:9",
    ]


def test_c_frames_are_shown_once_for_each_group() -> None:
    stances = [Stance(0, REDUCES), Stance(1, REDUCES, native=("epoll_wait in libc.so.6", "wait at pair.cc:3"))]
    assert rendered(*stances).splitlines()[-3:] == [
        "  native frames of rank 1:",
        "    epoll_wait in libc.so.6",
        "    wait at pair.cc:3",
    ]


def test_without_a_reader_of_c_frames_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollcall, "reader_path", lambda: "")
    assert rendered(Stance(0, REDUCES)).endswith("(native frames: pip install pystack)")
    assert "install" not in rendered(Stance(0, LOOPS))
    assert "install" not in rollcall.render([Stance(0, REDUCES)], rollcall.Blame(), cause_is_known=True)


def test_an_empty_roll_call_is_reported_as_empty() -> None:
    assert rollcall.render([], Blame()) == "no rank is left to ask"


def test_a_deep_stack_without_code_of_the_user_is_bounded() -> None:
    text = rendered(Stance(0, (PYTEST,) * 500))
    assert len(text.splitlines()) < 30


# --- the cause, in one line --------------------------------------------------------------------------------


def cause(*stances: Stance, blamed: Blame | None = None) -> str:
    return rollcall.cause(list(stances), blamed or by_evidence(*stances))


def test_the_cause_begins_with_the_rank_to_blame() -> None:
    stances = [Stance(0, REDUCES), Stance(1, LOOPS), Stance(2, REDUCES), Stance(3, REDUCES)]
    assert cause(*stances) == "rank 1 is in step at test_x.py:7; ranks 0,2,3 wait in all_reduce at test_x.py:40"


def test_a_rank_that_ended_its_test_is_the_cause() -> None:
    text = cause(Stance(0, REDUCES), blamed=Blame((1,), ENDED))
    assert text == "rank 1 ended its test; rank 0 waits in all_reduce at test_x.py:40"


@pytest.mark.parametrize(
    ("stance", "sentence"),
    [
        (Stance(0, LOOPS, state="stopped"), "rank 0 is in step at test_x.py:7, stopped"),
        (Stance(0, ()), "rank 0 is not answering (no stack available)"),
    ],
)
def test_a_rank_with_little_evidence_is_the_cause(stance: Stance, sentence: str) -> None:
    assert cause(stance) == sentence


def test_of_many_groups_the_cause_names_a_few_and_counts_the_rest() -> None:
    """It is one line of a summary, even if each of 32 ranks is at another line."""
    apart = [Stance(rank, (Frame(HERE, rank, "step"), PYTEST)) for rank in range(32)]
    assert cause(*apart) == (
        "rank 0 is in step at test_x.py:0; rank 1 is in step at test_x.py:1; rank 2 is in step at test_x.py:2; "
        "and 29 more groups"
    )


def test_of_many_ranks_in_no_row_the_cause_names_the_first_and_their_number() -> None:
    stances = [Stance(rank, LOOPS if rank % 2 else REDUCES) for rank in range(128)]
    assert cause(*stances) == (
        "64 ranks (1,3,5,7,9,11,13,15,...) are in step at test_x.py:7; "
        "64 ranks (0,2,4,6,8,10,12,14,...) wait in all_reduce at test_x.py:40"
    )


# --- frames in C -----------------------------------------------------------------------------------------

PYSTACK = """\
Traceback for thread 77 (worker) [] (most recent call last):
    (C) File "???", line 0, in clone3 (libc.so.6)
Traceback for thread 42 (python) [Has the GIL] (most recent call last):
    (Python) File "/home/me/test_x.py", line 12, in test_loop
    (C) File "/build/Modules/_ctypes/callproc.c", line 1262, in _call_function_pointer (inlined) (_ctypes.so)
    (C) File "???", line 0, in clock_nanosleep (libc.so.6)
"""


def test_c_frames_are_the_main_threads_innermost_first() -> None:
    assert native.frames_in(PYSTACK, 42) == (
        "clock_nanosleep in libc.so.6",
        "_call_function_pointer at callproc.c:1262",
    )


def test_frames_of_pybind11_are_left_out() -> None:
    glue = (
        '    (C) File "???", line 0, in pybind11::cpp_function::dispatcher(_object*, _object*) (libtorch_python.so)\n'
    )
    assert native.frames_in(PYSTACK.replace("    (C)", f"{glue}    (C)"), 42) == native.frames_in(PYSTACK, 42)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "(not known: pystack printed nothing)"),
        ("Traceback:\nOperation not permitted\n", "(not known: Operation not permitted)"),
    ],
)
def test_without_c_frames_the_reason_is_shown(text: str, why: str) -> None:
    assert native.frames_in(text, 42) == (why,)


def test_a_fatal_error_is_shown_without_the_frames_of_pytest_and_the_threads_of_this_harness() -> None:
    text = f"""\
Fatal Python error: Segmentation fault

Thread 0x00007f11 (most recent call first):
  File "{witness.__file__}", line 80 in _serve

Current thread 0x00007f12 (most recent call first):
  File "{HERE}", line 12 in test_loop
  File "{PYTEST.file}", line 166 in pytest_pyfunc_call

Extension modules: numpy, torch (total: 2)
"""
    assert rollcall.fatal(text).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f12 (most recent call first):",
        f'  File "{HERE}", line 12 in test_loop',
    ]


def test_a_fatal_error_in_a_collective_is_shown_without_what_only_sees_the_calls_of_groups() -> None:
    stack = [
        (group_calls.__file__, 24, "wrapped"),
        (TORCH, 3010, "all_reduce"),
        (WRAPPER.file, 81, "wrapper"),
        (HERE, 12, "test_loop"),
    ]
    frames = [f'  File "{file}", line {line} in {function}' for file, line, function in stack]
    head = "Current thread 0x00007f12 (most recent call first):"
    assert rollcall.fatal("\n".join([head, *frames])).splitlines() == [head, *frames[1:]]


# --- the wait for answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("waits", "text"), [(1.0, "an answer"), (0.0, "")], ids=["runnable", "asleep"])
def test_a_rank_that_waits_for_the_processor_has_longer_to_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waits: float, text: str
) -> None:
    """On a busy machine it is late; it answers here at the tenth look, and the limit has four."""
    looks = []

    def waited() -> float:
        looks.append(waits * time.monotonic())
        if len(looks) == 10:
            (tmp_path / "stacks").write_text("an answer")
        return looks[-1]

    monkeypatch.setattr(processes, "_ANSWER", 0.2)
    monkeypatch.setattr(processes, "_MOST", 1e6)
    monkeypatch.setattr(processes, "CoreWaits", lambda pids: waited)
    monkeypatch.setattr(processes, "_signal", lambda *_: None)
    (tmp_path / "stacks").touch()
    with (tmp_path / "stacks").open("rb") as stacks:
        answers = processes.ask({0: processes.AskedProcess(1, stacks)}, stopped={0: ""})
    assert answers[0].text == text
