"""The failure texts as a user reads them. EXPECTTEST_ACCEPT=1 writes them again: then read them."""

from __future__ import annotations

import re

import expecttest
import pytest

from tests.engines import one_run
from tests.inner import Inner

SOURCE = """
    import os, signal, threading
    import pytest, torch
    import torch.distributed as dist

    touched = []

    @pytest.mark.world(2)
    def test_touches(world):
        touched.append(1)

    @pytest.mark.world(2)
    def test_wants_it_untouched(world):
        assert not touched

    @pytest.mark.world(4)
    def test_one_fails(process_group, world):
        loss = torch.tensor(float(world.rank))
        if world.rank == 1:
            assert loss == 0
        dist.all_reduce(loss)

    @pytest.mark.world(4)
    def test_all_fail(world):
        assert world.size == 5
    @pytest.mark.world(3)
    def test_killed(process_group, world):
        world.barrier()  # a rank that still connects would lose the connection
        if world.rank == 2:
            print("about to run out of memory")
            os.kill(os.getpid(), signal.SIGKILL)
        dist.recv(torch.ones(1), src=1 - world.rank)

    @pytest.mark.world(3)
    def test_leaves(world):
        if world.rank == 1:
            os._exit(0)

    @pytest.mark.world(3)
    def test_one_skips(process_group, world):
        if world.rank == 1:
            pytest.skip("no room")
        dist.barrier()

    @pytest.mark.world(4, timeout=1)
    def test_hangs(process_group, world):
        if world.rank == 2:
            dist.recv(torch.ones(1), src=0)
        dist.all_reduce(torch.ones(1))

    @pytest.fixture
    def closing(world):
        yield
        if world.rank == 0:
            os._exit(3)

    @pytest.mark.world(2)
    def test_fails_and_dies_in_teardown(closing, world):
        assert world.rank == 1

    @pytest.fixture
    def hanging(world):
        yield
        if world.rank == 0:
            threading.Event().wait()

    @pytest.mark.world(2)
    def test_fails_and_hangs_in_teardown(hanging, world):
        assert world.rank == 1

    class Differs:
        def __repr__(self):
            return f"Differs(on rank {os.environ.get('RANK')})"

    @pytest.mark.world(2)
    @pytest.mark.parametrize("value", [Differs()], ids=["one"])
    def test_differs(value, world):
        pass

    @pytest.mark.world(2)
    def test_meets(world):
        if world.rank == 1:
            return
        world.barrier()
"""

_NATIVE = re.compile(r"^  native frames of rank \d+:\n(?:    .*\n?)+", re.MULTILINE)
_LIBRARY = re.compile(r"(?<= at )((?:torch|_pytest|everyrank)/\S+?):\d+")


worlds = one_run(SOURCE)


def plain(text: str, inner: Inner) -> str:
    """Remove what differs between machines: folders, lines of libraries, C frames, trailing blanks."""
    text = text.replace(f"{inner.folder}/", """""")
    text = _LIBRARY.sub(r"\1:N", _NATIVE.sub("", text))
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    text = re.sub(r"(seed[ =])\d+", r"\1N", text)
    text = re.sub(r"^(-+) (.*?) -+$", r"--- \2 ---", text, flags=re.MULTILINE)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


class Texts(expecttest.TestCase):
    """The failure texts of one run of `SOURCE`."""

    @pytest.fixture(autouse=True)
    def _run(self, worlds: Inner) -> None:
        self.worlds = worlds

    def text_of(self, test: str) -> str:
        return plain(self.worlds[test].text, self.worlds)


class TestTextsOfRanks(Texts):
    """A rank that fails, dies or hangs."""

    def test_an_exception_on_one_rank(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_one_fails"),
            """\
rank 1 of 4 failed first, in call

process_group = <torch.distributed.distributed_c10d.ProcessGroup object at 0x>
world = World(rank=1, size=4, local_rank=1, device='cpu', backend='gloo', seed=N)

    @pytest.mark.world(4)
    def test_one_fails(process_group, world):
        loss = torch.tensor(float(world.rank))
        if world.rank == 1:
>           assert loss == 0
E           assert tensor(1.) == 0

test_inner.py:20: AssertionError
--- the other ranks ---
ranks 0,2,3: waiting in all_reduce at test_inner.py:21
--- to repeat ---
pytest test_inner.py::test_one_fails  # rank 1 had the seed N""",
        )

    def test_the_same_exception_on_all_ranks(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_all_fail"),
            """\
on ranks 0-3

world = World(rank=0, size=4, local_rank=0, device='cpu', backend='gloo', seed=N)

    @pytest.mark.world(4)
    def test_all_fail(world):
>       assert world.size == 5
E       AssertionError: assert 4 == 5
E        +  where 4 = World(rank=0, size=4, local_rank=0, device='cpu', backend='gloo', seed=N).size

test_inner.py:25: AssertionError
--- to repeat ---
pytest test_inner.py::test_all_fail  # rank 0 had the seed N""",
        )

    def test_a_rank_that_is_killed(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_killed"),
            """\
rank 2 of 3 was killed by SIGKILL in call
--- the other ranks ---
ranks 0,1: waiting in recv at test_inner.py:32
--- roll call ---
ranks 0,1 are waiting in recv at test_inner.py:32

ranks 0,1, innermost frame first:
  recv at torch/distributed/distributed_c10d.py:N
  wrapper at torch/distributed/c10d_logger.py:N
  test_killed at test_inner.py:32
--- last words of rank 2 ---
about to run out of memory
--- to repeat ---
pytest test_inner.py::test_killed  # rank 2 had the seed N""",
        )

    def test_a_rank_that_leaves_without_a_record(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_leaves"),
            """\
rank 1 of 3 left without a record (exit code 0) in call
--- the other ranks ---
ranks 0,2: passed
--- to repeat ---
pytest test_inner.py::test_leaves  # rank 1 had the seed N""",
        )

    def test_a_rank_that_fails_and_then_dies(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_fails_and_dies_in_teardown"),
            """\
rank 0 of 2 failed first, in call

closing = None
world = World(rank=0, size=2, local_rank=0, device='cpu', backend='gloo', seed=N)

    @pytest.mark.world(2)
    def test_fails_and_dies_in_teardown(closing, world):
>       assert world.rank == 1
E       AssertionError: assert 0 == 1
E        +  where 0 = World(rank=0, size=2, local_rank=0, device='cpu', backend='gloo', seed=N).rank

test_inner.py:59: AssertionError
--- the ranks ---
rank 0: AssertionError: assert 0 == 1 at test_inner.py:59; then, in teardown, left without a record (exit code 3)
rank 1: passed
--- to repeat ---
pytest test_inner.py::test_fails_and_dies_in_teardown  # rank 0 had the seed N""",
        )

    def test_a_rank_that_fails_and_then_hangs(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_fails_and_hangs_in_teardown"),
            """\
rank 0 of 2 failed first, in call

hanging = None
world = World(rank=0, size=2, local_rank=0, device='cpu', backend='gloo', seed=N)

    @pytest.mark.world(2)
    def test_fails_and_hangs_in_teardown(hanging, world):
>       assert world.rank == 1
E       AssertionError: assert 0 == 1
E        +  where 0 = World(rank=0, size=2, local_rank=0, device='cpu', backend='gloo', seed=N).rank

test_inner.py:69: AssertionError
--- the ranks ---
rank 0: AssertionError: assert 0 == 1 at test_inner.py:69; then, in teardown, waiting in wait at test_inner.py:65
rank 1: passed
--- to repeat ---
pytest test_inner.py::test_fails_and_hangs_in_teardown  # rank 0 had the seed N""",
        )


class TestTextsOfWorlds(Texts):
    """A world whose ranks do not agree, or do not meet, and the summary of the run."""

    def test_ranks_that_disagree_on_skipping(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_one_skips"),
            """\
ranks disagree: only some of them skipped
--- the ranks ---
rank 1 skipped: no room
ranks 0,2: waiting in barrier at test_inner.py:43
--- to repeat ---
pytest test_inner.py::test_one_skips  # rank 1 had the seed N""",
        )

    def test_a_missed_deadline(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_hangs"),
            """\
rank 2 waits in recv from rank 0 at test_inner.py:48; ranks 0,1,3 wait in all_reduce at test_inner.py:49 (deadline 1 s)
the world of 4 missed its deadline of 1 s (the mark world): ranks 0-3 had not finished
--- roll call ---
rank 2 is waiting in recv from rank 0 at test_inner.py:48
ranks 0,1,3 are waiting in all_reduce at test_inner.py:49

rank 2, innermost frame first:
  recv at torch/distributed/distributed_c10d.py:N
  wrapper at torch/distributed/c10d_logger.py:N
  test_hangs at test_inner.py:48

ranks 0,1,3, innermost frame first:
  all_reduce at torch/distributed/distributed_c10d.py:N
  wrapper at torch/distributed/c10d_logger.py:N
  test_hangs at test_inner.py:49
--- to repeat ---
pytest test_inner.py::test_hangs  # rank 0 had the seed N""",  # noqa: E501 - a line of the text
        )

    def test_a_test_that_passes_alone(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_wants_it_untouched"),
            """\
on ranks 0,1
This test passes alone: run again in a fresh world, it passed.
In its warm world it came after test_inner.py::test_touches, and one of them changed what this test sees.
Find what was left behind, or mark this test @pytest.mark.world(fresh=True).

world = World(rank=0, size=2, local_rank=0, device='cpu', backend='gloo', seed=N)

    @pytest.mark.world(2)
    def test_wants_it_untouched(world):
>       assert not touched
E       assert not [1]

test_inner.py:14: AssertionError
--- to repeat ---
pytest test_inner.py::test_wants_it_untouched  # rank 0 had the seed N""",
        )

    def test_ranks_that_ran_different_tests(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_differs[one]"),
            """\
ranks ran different tests
  rank 0: test_inner.py::test_differs[one] value=Differs(on rank 0)
  rank 1: test_inner.py::test_differs[one] value=Differs(on rank 1)
--- to repeat ---
pytest 'test_inner.py::test_differs[one]'  # rank 0 had the seed N""",
        )

    def test_a_rank_that_never_comes_to_a_meeting(self) -> None:
        self.assertExpectedInline(
            self.text_of("test_meets"),
            """\
rank 0 of 2 failed first, in call

world = World(rank=0, size=2, local_rank=0, device='cpu', backend='gloo', seed=N)

    @pytest.mark.world(2)
    def test_meets(world):
        if world.rank == 1:
            return
>       world.barrier()
E       AssertionError: rank 1 ended without coming to barrier() at test_inner.py:84

test_inner.py:84: AssertionError
--- the other ranks ---
rank 1: passed
--- to repeat ---
pytest test_inner.py::test_meets  # rank 0 had the seed N""",
        )

    def test_the_summary(self) -> None:
        summary = self.worlds.out.partition("short test summary info")[2].partition("\n")[2]
        summary = re.sub(r"^=+ (.*) in \S+ =+\s*$", r"\1", summary, flags=re.MULTILINE)
        self.assertExpectedInline(
            plain(summary, self.worlds),
            """\
FAILED test_inner.py::test_wants_it_untouched - (passes alone) assert not [1]
FAILED test_inner.py::test_one_fails - [rank 1] assert tensor(1.) == 0
FAILED test_inner.py::test_all_fail - AssertionError: assert 4 == 5
FAILED test_inner.py::test_killed - rank 2 of 3 was killed by SIGKILL in call
FAILED test_inner.py::test_leaves - rank 1 of 3 left without a record (exit c...
FAILED test_inner.py::test_one_skips - ranks disagree: only some of them skipped
FAILED test_inner.py::test_hangs - rank 2 waits in recv from rank 0 at test_i...
FAILED test_inner.py::test_fails_and_dies_in_teardown - [rank 0] AssertionErr...
FAILED test_inner.py::test_fails_and_hangs_in_teardown - [rank 0] AssertionEr...
FAILED test_inner.py::test_meets - [rank 0] AssertionError: rank 1 ended with...
ERROR test_inner.py::test_differs[one] - ranks ran different tests
10 failed, 1 passed, 1 error""",
        )
