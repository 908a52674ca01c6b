"""parity is silent on honest ways to be parallel, and names where rogues part from the plain model.

These are a few rows of its table: each of the main ways at 2 ranks, and a rogue of each kind. `everyrank kill-matrix`
has a part of all, in turn by the commit, and `make test-parity` has all.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.kill.rows import Row, rows

pytestmark = [
    pytest.mark.world(2),
    pytest.mark.filterwarnings("ignore:.*does not define an element-wise:UserWarning"),
]

NAMES = (
    "ddp",
    "fsdp",
    "megatron-sequence",
    "torch-tensor",
    "never-syncs",
    "own-seeds",
    "gives-the-last-steps-mean",
    "divides-by-no-tokens",
    "reduces-in-bfloat16",
    "norm-is-local",
)
#: What ranks share.
CUT = {"ddp": set(), "fsdp": {"weights"}, "megatron-sequence": {"weights", "tokens"}, "torch-tensor": {"weights"}}
ROWS = {row.name: row for row in rows() if row.size == 2 and row.name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_subject_is_silent_and_a_rogue_is_found_as_it_must_be(name: str, process_group: Any) -> None:
    row: Row = ROWS[name]
    report = row.run()
    assert not row.fault(report), report.text()
    assert report.cut == CUT.get(name, report.cut)
