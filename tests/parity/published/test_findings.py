"""Silent faults that parity has found in published models: docs/findings/ has scripts of them.

If one of these tests fails with a new transformers or torch, the fault is mended there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.parity.published.models import MIXTRAL, QWEN3, Published, of_transformers
from tests.parity.published.ways import Library, LibraryAtOnce, LibraryExperts

pytest.importorskip("transformers", reason="transformers is not installed: make test-models")

pytestmark = [pytest.mark.world(2), pytest.mark.filterwarnings("ignore")]

APERTUS = Published("apertus", "transformers", lambda: of_transformers("ApertusConfig"))


def test_qwen3_reduces_two_norms_again_with_each_microbatch(process_group: Any, tmp_path: Path) -> None:
    (found,) = Library(QWEN3, tmp_path).report().findings
    assert (found.kind, found.pattern) == ("gradient", "reduced-twice")
    names = {found.tensor, *found.same}
    assert names == {f"model.layers.{layer}.self_attn.{norm}_norm.weight" for layer in (0, 1) for norm in "qk"}
    assert found.words.startswith("is 2 * g1 + 1 * g2 on ranks 0 and 1")


def test_apertus_never_reduces_its_activations(process_group: Any, tmp_path: Path) -> None:
    (first,) = LibraryAtOnce(APERTUS, tmp_path).report().findings
    assert (first.kind, first.pattern) == ("gradient", "not-reduced")
    names = {first.tensor, *first.same}
    assert names == {f"model.layers.{layer}.mlp.act_fn.alpha_{sign}" for layer in (0, 1) for sign in "pn"}


def test_mixtrals_experts_on_groups_of_one_rank_are_divided_twice_in_one_dtype(
    process_group: Any, tmp_path: Path
) -> None:
    (found,) = LibraryExperts(MIXTRAL, tmp_path).report().findings
    assert (found.kind, found.pattern, found.dtypes) == ("gradient", "other-dtype-only", ("fp64",))
    names = {found.tensor, *found.same}
    assert names == {
        f"model.layers.{layer}.mlp.experts.{name}_proj" for layer in (0, 1) for name in ("gate_up", "down")
    }
