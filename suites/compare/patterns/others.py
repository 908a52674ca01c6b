"""Patterns of values that are right elsewhere, or but for a part: of another step, parameter, position or rank."""

from __future__ import annotations

import itertools

import torch
from everyrank.model.counts import count
from everyrank.suites.compare.patterns.evidence import AllRanks, OneRank
from everyrank.suites.compare.patterns.likeness import all_of, distance, moved, multiple, wrong_from
from everyrank.suites.compare.patterns.pattern import Pattern
from everyrank.suites.compare.patterns.texts import ranks_text, short


class Stale(Pattern):
    """The values belong to the step before, or are made from its gradients.

    A buffer is used before its reduction is done (DeepSpeed#5606), or a pipeline sends what it had sent before. It
    takes a second step to be seen: with `steps=1` parity does not find it.
    """

    id = "stale"
    rogue = "gives-the-last-steps-mean"
    example = (
        "parity: gradient of `head.bias` is that of the step before on ranks 0 and 1 (step 2, fp64 and fp32), "
        "as 35 others of its kind"
    )

    def of_one_rank(self, seen: OneRank) -> str | None:
        return "as it was a step before" if seen.before is not None and seen.is_like(seen.before) else None

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        before = seen.before
        if before is None or not seen.explains(lambda rank: seen.of_rank(before, rank)):
            return None
        return f"is that of the step before on {seen.location}"


class NotCleared(Pattern):
    """The gradient of the step before is still there, and this step's was added to it.

    `zero_grad` is forgotten, is called on another optimizer than the one that steps, or leaves out the parameters
    that a wrapper has made. It takes a second step to be seen.
    """

    id = "not-cleared"
    rogue = "never-clears"
    example = (
        "parity: gradient of `head.bias` is this step's and that of the step before, which was not cleared, on ranks "
        "0 and 1 (step 2, fp64 and fp32), as 35 others of its kind"
    )

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        before = seen.before
        if before is None or all(len(seen.held[rank].ids) < 3 for rank in seen.wrong):
            return None
        rank = seen.wrong[0]
        # A clip may have made the gradient of the step before smaller.
        part = multiple(seen.held[rank].values.double() - seen.expected(rank), seen.of_rank(before, rank))
        if not 0 < part < 1.001 or not seen.explains(
            lambda rank: seen.expected(rank) + part * seen.of_rank(before, rank).double()
        ):
            return None
        return f"is this step's and that of the step before, which was not cleared, on {seen.location}"


class OtherParameter(Pattern):
    """The values belong to another parameter, of the same shape.

    A map of names is off by one layer, an entry of a fused projection is loaded twice, or every rank has loaded the
    first rank's experts. Parity finds it in the initialization by the dye, without a step; of a gradient it is a
    bucket that is read in another order than it was written.
    """

    id = "other-parameter"
    rogue = "loads-a-neighbours-norm"
    example = (
        "parity: initialization of `blocks.1.ln2.weight` holds the values of blocks.0.ln2.weight on ranks 0 and 1 "
        "(before the first step, fp64 and fp32)"
    )

    def of_one_rank(self, seen: OneRank) -> str | None:
        shape = seen.expected.shape
        others = {name: other for name, other in seen.others.items() if other.shape == shape}
        like = [name for name, other in others.items() if other.unique().numel() > 1 and seen.is_like(other)]
        return f"the reference of {like[0]}" if len(like) == 1 else None

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        for name, other in seen.others.items():
            same_shape = other.shape == seen.whole.shape
            if same_shape and seen.explains(lambda rank, other=other: seen.of_rank(other, rank)):  # type: ignore[misc]
                return f"is {name} on {seen.location}"
        return None


class Shifted(Pattern):
    """The values are right, but at other positions; or some rows are on several ranks, and others on none.

    All ranks train on the same rows since no sampler deals them out, each part of a sequence counts its positions
    from 0, or a square weight is loaded transposed.
    """

    id = "shifted"
    rogue = "same-rows-everywhere"
    example = (
        "parity: output of `tokens` has 576 of its 10368 elements on no rank, and others more than once "
        "(step 1, fp64 and fp32)"
    )

    def of_one_rank(self, seen: OneRank) -> str | None:
        if seen.rows < 3 or seen.expected.unique().numel() < 3:
            return None
        if (shift := moved([(all_of(seen.values), seen.near)], seen.expected)) is None:
            return None
        dimension, by = shift
        if dimension:
            return f"the reference's values, moved by {-by} along dimension {dimension}"
        return f"the reference's rows, moved {'down' if by < 0 else 'up'} by {count(abs(by), 'row')}"

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        parts = [(seen.held[rank], seen.off(rank) / seen.times) for rank in seen.wrong]
        if (shift := moved(parts, seen.whole)) is None:
            return None
        dimension, by = shift
        way = f"{count(abs(by), 'position')} {'further' if by > 0 else 'back'} in dimension {dimension}"
        return f"is right but {way}, on {seen.location}"


class Rounded(Pattern):
    """The values have gone through a narrower dtype.

    Gradients are reduced, or activations sent, in bfloat16 (Megatron-LM#372, #502). It may be meant: then pass
    `skip=` to parity, or leave it out of the test. In parity's pass in fp64 casts do nothing, so that it is seen in
    the model's own dtype.
    """

    id = "rounded"
    rogue = "reduces-in-bfloat16"
    example = "parity: gradient of `head.bias` has gone through bf16 on ranks 0 and 1 (step 1, fp32)"

    def of_one_rank(self, seen: OneRank) -> str | None:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):  # the widest first
            rounded = seen.expected.to(dtype).to(seen.expected.dtype)
            if not torch.equal(rounded, seen.expected) and torch.equal(rounded, seen.values):
                return f"the reference, rounded to {str(dtype).removeprefix('torch.')}"
        return None

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):  # what fits the first fits the others, too
            if all(_has_gone_through(dtype, seen, rank) for rank in seen.wrong):
                return f"has gone through {short(dtype)} on {seen.location}"
        return None


def _has_gone_through(dtype: torch.dtype, seen: AllRanks, rank: int) -> bool:
    """Return whether all values can be written in a narrower dtype, and are as near as rounding to it leaves them."""
    limits, values = torch.finfo(dtype), seen.held[rank].values
    if limits.bits >= torch.finfo(values.dtype).bits:
        return False
    if seen.off(rank) > 8 * limits.eps * float(seen.expected(rank).abs().max()):
        return False
    values = values.double()
    return any(torch.equal((values * n).to(dtype).double(), values * n) for n in (1, seen.size, 3))


class ZeroRows(Pattern):
    """Some rows of a table are zero, and the others are right; of an update, these rows have not moved.

    A padding index is that of the whole vocabulary on a rank that counts its own rows from 0, rows that were added to
    make a vocabulary divisible are taken for padding, or the ids of one part of it are masked for all.
    """

    id = "zero-rows"
    rogue = "pads-on-each-rank"
    example = (
        "parity: gradient of `tokens.weight` is zero in row 33 of 60, and right in the others, on rank 1 "
        "(step 1, fp64 and fp32)"
    )

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        if seen.whole.ndim < 2:
            return None
        width, near = seen.whole[0].numel(), 1e-6 * float(seen.whole.abs().max())
        zero: set[int] = set()
        for rank in seen.wrong:
            held, expected = seen.held[rank], seen.expected(rank)
            bad = (held.values.double() - expected).abs() > near
            rows = held.ids // width
            mine = rows[bad].unique()
            if held.values[torch.isin(rows, mine)].any() or not held.values.any():
                return None
            zero |= {*mine.tolist()}
        if not zero:
            return None
        names = sorted(zero)
        location = f"row {names[0]}" if len(names) == 1 else f"{len(names)} rows, the first is {names[0]},"
        return f"is zero in {location} of {len(seen.whole)}, and right in the others, on {seen.location}"


class FromIndex(Pattern):
    """The values are right up to an index, and wrong from it on.

    Something is cut at the end of the first rank's part: masks that every rank draws for rows 0, 1, ... (slapo#21,
    tt-metal#55947), attention that sees its own part's keys alone (sglang#33353), or a bucket of a fixed length.
    """

    id = "from-index"
    rogue = "masks-by-local-row"
    example = (
        "parity: output of `blocks.0.dropout` is right up to index 11 of dimension 0, and wrong from 12 on "
        "(step 1, fp64 and fp32)"
    )

    def of_one_rank(self, seen: OneRank) -> str | None:
        held = all_of(seen.values)
        bad = (held.values.double() - seen.expected.reshape(-1).double()).abs() > seen.near
        dimension, first = wrong_from([(held.ids, bad)], seen.expected.shape) or (0, 0)
        # Two rows on each side at the least: of three rows, one may be wrong for many reasons.
        if dimension or not 2 <= first <= seen.rows - 2:
            return None
        return f"right up to row {first - 1} of {seen.rows}, and wrong from row {first} on"

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        limit = 1e-6 * float(seen.whole.abs().max())
        parts = (
            (held.ids, (held.values.double() - seen.expected(rank)).abs() > limit) for rank, held in seen.held.items()
        )
        if (start := wrong_from(parts, seen.whole.shape)) is None:
            return None
        dimension, first = start
        return f"is right up to index {first - 1} of dimension {dimension}, and wrong from {first} on"


class ReplicasDiffer(Pattern):
    """Ranks that hold the same elements have other values.

    Those of some ranks are right, or each has its own. Each rank has drawn its weights from its own seed, and nothing
    was broadcast; running statistics differ from rank to rank (pytorch#22192); a rank keeps to itself what it has
    updated for all. Nothing brings replicas together again.
    """

    id = "replicas-differ"
    rogue = "own-seeds"
    example = (
        "parity: initialization of `head.weight` is right on rank 0 and wrong on rank 1 "
        "(before the first step, fp64 and fp32)"
    )

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        right = [rank for rank in seen.held if rank not in seen.wrong]
        wrong_ids = set(torch.cat([seen.held[rank].ids for rank in seen.wrong]).tolist())
        if any(wrong_ids & set(seen.held[rank].ids.tolist()) for rank in right):
            return f"is right on {ranks_text(right)} and wrong on {seen.location}"
        for first, second in itertools.combinations(seen.wrong, 2):
            held, other = seen.held[first], seen.held[second]
            if torch.equal(held.ids, other.ids):
                apart = distance(held.values.double(), other.values.double())
                if apart > min(seen.off(first), seen.off(second)) / seen.times:
                    return f"is wrong on {seen.location}, on each in another way"
        return None


class BatchStatistics(Pattern):
    """A module looks at other rows of the batch, and has those of its rank or microbatch alone.

    Batch norm in training normalizes by the rows that it gets, so ranks and microbatches train something else than
    one process does: normalize over all ranks' rows, as SyncBatchNorm, with microbatches=1; build it with `.eval()`;
    or take a norm of one row. Negatives of a contrastive loss and moments of features are to be gathered over ranks.
    """

    id = "batch-statistics"
    rogue = "normalizes-its-own-rows"
    example = (
        "parity: output of `normalizer` differs by 0.092 of its largest value on ranks 0 and 1: each rank's loss is "
        "that of its own rows alone (step 1, fp64 and fp32)"
    )


PATTERNS = (
    Stale(),
    NotCleared(),
    OtherParameter(),
    Shifted(),
    Rounded(),
    ZeroRows(),
    FromIndex(),
    ReplicasDiffer(),
    BatchStatistics(),
)
