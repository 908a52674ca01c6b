"""Where ranks parted: everyrank.controller.parting on made-up calls."""

from __future__ import annotations

import pytest
from everyrank.controller.deadlock import deadlock
from everyrank.controller.parting import first
from everyrank.wire.messages import Collective, PlacedCall, WitnessStatement

from tests.inner import Project


def calls(*each: str) -> dict[int, list[PlacedCall]]:
    """Return what each rank called: a letter for each line."""
    return {rank: [PlacedCall("all_reduce", f"a.py:{line}") for line in lines] for rank, lines in enumerate(each)}


@pytest.mark.parametrize(
    ("each", "number"),
    [
        (("ttettb", "ttttb"), 3),  # one more on rank 0
        (("tttt", "ttett", "tttt"), 3),
        (("teeett", "ttt"), 2),
        (("tttttt", "tttt"), None),  # one more, from the same line: rank 1 has ended or waits
        (("abab", "abb"), 3),
        (("tx", "ty"), None),  # they wait in these two
        (("txa", "tyb"), 2),  # in no way do they fit
        (("trx", "tsx"), None),  # one branch each, on purpose
        (("trxxeyy", "tsxxyy"), 5),  # and parted after it
        (("txbabcd", "tabcd"), 2),  # two more, the second by chance from a line of the other's
        (("", "tt"), None),
        (("tt",), None),
        ((), None),
    ],
)
def test_the_first_call_that_not_all_ranks_made_is_found(each: tuple[str, ...], number: int | None) -> None:
    assert first(calls(*each)) == number
    assert first(dict(enumerate(calls(*each[::-1]).values()))) == number


def test_calls_from_one_line_are_distinguished_by_their_names() -> None:
    mine = [PlacedCall(name, "a.py:7") for name in ("broadcast", "broadcast", "all_reduce")]
    theirs = [PlacedCall(name, "a.py:7") for name in ("broadcast", "all_reduce", "broadcast")]
    statements = {
        rank: WitnessStatement(
            1, 99, operation="forward", location="a.py:7", group="0", members=[0, 1], number=3, patience=1800.0,
            collectives=[Collective("0", 3, made[-1].name, "")], before={"0": 0}, calls={"0": made},
        )
        for rank, made in enumerate((mine, theirs))
    }  # fmt: skip
    found = deadlock(statements, frozenset(), float("inf"))
    assert found is not None
    assert found.cause.endswith(
        "; already the 2nd was broadcast at a.py:7 on rank 0 and all_reduce at a.py:7 on rank 1"
    )


READS = """
import sys
import torch, torch.distributed as dist
from everyrank.rank import recorder
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(2))
dist.all_reduce(torch.ones(2)); dist.barrier()
print(recorder.calls(recorder.entries(with_stacks=True)), "torch._inductor" in sys.modules, torch._inductor.__name__)
"""


def test_the_lines_are_read_without_an_import_of_torchs_compiler(project: Project) -> None:
    project.write("reads.py", READS)
    result = project.python("reads.py")
    assert result.stdout == (
        "{'0': [PlacedCall(name='all_reduce', location='reads.py:6'), "
        "PlacedCall(name='all_reduce', location='reads.py:7'), "
        "PlacedCall(name='barrier', location='reads.py:7')]} False torch._inductor\n"
    ), result.stderr
