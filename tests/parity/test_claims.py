"""Which claims of parameters' placements the dye refutes, which it bears out, and which it does not decide."""

from __future__ import annotations

import torch
from everyrank.parity.judge.claims import of_gradient, unseen_claims, wrong_claims
from everyrank.parity.run.activations import GradientClaim
from everyrank.parity.values.claims import Claim
from everyrank.parity.values.dye import Elements, Holdings, Listed, Share, Strided
from everyrank.suites.compare.patterns.fit import Fit
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

NAMED = ("dp", "tp")
SIZES = {"w": torch.Size((8, 4))}


def rows(start: int, count: int) -> Strided:
    """Return rows of the weight, as the dye shows them."""
    return Strided(start * 4, (count, 4), (4 if count > 1 else 0, 1))


def holdings(elements: Elements | None, claim: Claim) -> Holdings:
    shares = () if elements is None else (Share("w", "0:w", Strided(0, (elements.count,), (1,)), elements),)
    return Holdings(shares, (), (), (), (), (), (claim,))


def claim(*placements: Placement, sizes: tuple[int, ...] = (2,), shape: tuple[int, ...] = (8, 4)) -> Claim:
    count = int(torch.tensor(sizes).prod())
    return Claim("0:w", sizes, (*range(count),), NAMED[-len(sizes) :], placements, shape)


def text(claimed: Claim, *elements: Elements | None) -> str:
    found = wrong_claims([holdings(each, claimed) for each in elements], SIZES)
    return found["w"].text if found else ""


HALVES = (rows(0, 4), rows(4, 4))
WHOLE = (rows(0, 8), rows(0, 8))


def test_what_is_as_claimed_is_silent() -> None:
    assert text(claim(Shard(0)), *HALVES) == ""
    assert text(claim(Replicate()), *WHOLE) == ""
    assert text(claim(Partial("avg")), *WHOLE) == ""


def test_each_untrue_claim_has_its_sentence() -> None:
    assert text(claim(Replicate()), *HALVES) == "claims Replicate() over tp, and is not the same on ranks 0 and 1"
    assert text(claim(Shard(1)), *HALVES) == "claims Shard(1) over tp, and is Shard(0) on ranks 0 and 1"
    assert text(claim(Shard(0)), *WHOLE) == "claims Shard(0) over tp, and is the same on ranks 0 and 1"
    longer = "claims Shard(0) over tp, and is the same on ranks 0 and 1, by mistake or on purpose (then: skip=)"
    assert text(claim(Shard(0), shape=(16, 4)), *WHOLE) == longer
    assert (
        text(claim(Shard(0)), *HALVES[::-1])
        == "claims Shard(0) over tp, and has its parts in the order of ranks 1, 0"
    )
    assert (
        text(claim(Partial()), *WHOLE)
        == "claims Partial('sum') over tp, and is no term of a sum, but the same on ranks 0 and 1"
    )


def test_uneven_parts_and_ranks_without_any_are_as_claimed() -> None:
    assert text(claim(Shard(0), sizes=(3,)), rows(0, 3), rows(3, 3), rows(6, 2)) == ""
    five = [rows(0, 2), rows(2, 2), rows(4, 2), rows(6, 2), None]
    assert text(claim(Shard(0), sizes=(5,)), *five) == ""


def test_a_layer_that_keeps_its_weight_transposed_cuts_its_own_dimensions() -> None:
    parts = (Strided(0, (4, 4), (1, 4)), Strided(16, (4, 4), (1, 4)))
    assert text(claim(Shard(1), shape=(4, 8)), *parts) == ""
    assert "is Shard(1)" in text(claim(Shard(0), shape=(8, 4)), *parts)


def test_what_ranks_keep_twice_may_be_a_part_of_something_longer() -> None:
    twice = (rows(0, 4), rows(0, 4), rows(4, 4), rows(4, 4))
    assert text(claim(Shard(0), sizes=(4,), shape=(16, 4)), *twice) == ""


def test_an_axis_of_one_rank_claims_nothing() -> None:
    assert text(claim(Shard(1), Shard(0), sizes=(1, 2)), *HALVES) == ""


#: Parts of what tensor parallelism has cut in halves, and FSDP2 again: by rank of (dp, tp).
STRIDED = (rows(0, 2), rows(4, 2), rows(2, 2), rows(6, 2))


def test_what_is_cut_twice_is_as_the_placements_of_both_axes_have_it() -> None:
    nested = (rows(0, 2), rows(2, 2), rows(4, 2), rows(6, 2))
    both = claim(Shard(0), Shard(0), sizes=(2, 2))
    assert text(claim(_StridedShard(0, split_factor=2), Shard(0), sizes=(2, 2)), *STRIDED) == ""
    assert text(both, *nested) == ""
    assert (
        text(both, *STRIDED)
        == "claims (Shard(0), Shard(0)) over dp and tp, and other parts than these are on ranks 1 and 2"
    )


def test_the_wrong_axis_of_a_grid_is_named() -> None:
    found = text(claim(Shard(0), Replicate(), sizes=(2, 2)), *HALVES, *HALVES)
    assert found == "claims Shard(0) over dp, and is the same on ranks 0 and 2"


def test_interleaved_parts_are_not_decided() -> None:
    parts = [
        Listed(torch.arange(32).view(8, 4)[[start, start + 4, start + 1, start + 5]].reshape(-1)) for start in (0, 2)
    ]
    held = [holdings(each, claim(Shard(0))) for each in parts]
    assert (wrong_claims(held, SIZES), unseen_claims(held, SIZES)) == ({}, ["w"])
    assert unseen_claims([holdings(each, claim(Shard(0))) for each in HALVES], SIZES) == []


# -- gradients -------------------------------------------------------------------------------------------------------

NOT_REDUCED = Fit("not-reduced", "is not reduced over tp: each of ranks 0 and 1 has its own part")


def test_a_gradient_that_is_not_reduced_over_the_axis_of_its_claim_is_called_so() -> None:
    whole = GradientClaim(claim(Replicate()), False)
    found = of_gradient([whole, whole], NOT_REDUCED)
    assert found == Fit("wrong-annotation", f"claims Replicate() over tp, and {NOT_REDUCED.text}")


def test_replicas_of_shards_are_reduced_by_what_shards_them() -> None:
    def of_grid(*placements: Placement) -> Fit | None:
        each = GradientClaim(claim(*placements, sizes=(2, 2)), False)
        over = next(name for name, mine in zip(NAMED, placements, strict=True) if mine.is_replicate())
        return of_gradient([each] * 4, Fit("not-reduced", f"is not reduced over {over}: each has its own part"))

    assert of_grid(Replicate(), Shard(0)) is None
    assert of_grid(Shard(0), Replicate()) is not None


def test_a_gradient_that_is_a_part_or_is_wrong_otherwise_is_not() -> None:
    part, whole = GradientClaim(claim(Shard(0)), False), GradientClaim(claim(Replicate()), False)
    assert of_gradient([part, part], NOT_REDUCED) is None
    assert of_gradient([whole, whole], Fit("stale", "is old")) is None
    assert of_gradient([None, None], NOT_REDUCED) is None


def test_a_term_of_a_sum_is_one_unless_every_rank_has_the_sum() -> None:
    term, total = GradientClaim(claim(Partial()), False), GradientClaim(claim(Partial()), True)
    assert of_gradient([total, term], None) is None
    found = of_gradient([total, total], None)
    assert found == Fit("wrong-annotation", "claims Partial('sum') over tp, and is summed already on ranks 0 and 1")
