"""Patterns that show only in another run: the training repeated with a mistake, or in another dtype."""

from __future__ import annotations

from everyrank.suites.compare.patterns.pattern import Pattern


class Clipped(Pattern):
    """Made from gradients that were not clipped, or not as one.

    Each rank clips its own gradient before the mean, each microbatch or each parameter is clipped on its own, or the
    norm counts a replica once for each rank.
    """

    id = "clipped"
    rogue = "clips-each-parameter"
    example = (
        "[fail] clips-each-parameter trainer/clip[cut-ws3]\n"
        "  step 1, first.weight: as if each parameter was clipped by its own norm (clipped)"
    )


class Twice(Pattern):
    """Made by an optimizer that has stepped twice.

    The wrapper steps, and so does the loop.
    """

    id = "twice"
    rogue = "steps-twice"
    example = (
        "[fail] steps-twice trainer/parity.train[SGD-everything-ws3]\n"
        "  step 1, first.weight: as if the optimizer had stepped twice (twice)"
    )


class Anew(Pattern):
    """Made by an optimizer that has forgotten its state, or how many steps it has done.

    A state is loaded without that of the optimizer, or without the counts of its steps.
    """

    id = "anew"
    rogue = "saves-no-step-counts"
    example = (
        "[fail] saves-no-step-counts trainer/state.round-trip[Adam-ws2]\n"
        "  step 4, first.weight: as if the optimizer had begun to count its steps anew (anew)"
    )


class Decay(Pattern):
    """Made with weight decay where there is none, or without.

    An option is lost on the way to the optimizer, or one group's options are applied to all.
    """

    id = "decay"
    rogue = "loses-weight-decay"
    example = (
        "[fail] loses-weight-decay trainer/state.round-trip[Adam-ws2]\n"
        "  step 1, first.weight: as if it had no weight decay (decay)"
    )


class Groups(Pattern):
    """Made with the options of another group of parameters.

    A wrapper flattens the parameters, or makes the optimizer over all of them, and the first group's options stay.
    """

    id = "groups"
    rogue = "one-group-for-all"
    example = (
        "[fail] one-group-for-all trainer/parity.groups[SGD-groups-ws3]\n"
        "  step 1, first.bias: as if the options of the first group went to all parameters (groups)"
    )


class Rows(Pattern):
    """Made from a mean over all rows where it is one over ranks.

    The ranks' batches have unequal numbers of rows, and each rank's gradient counts by its rows.
    """

    id = "rows"
    rogue = "weighs-rows-alike"
    example = (
        "[fail] weighs-rows-alike trainer/mean[falling-ws3]\n"
        "  step 1, first.weight: as if the mean was taken over all rows, and not over ranks, which have 5, 4, 2 rows "
        "(rows)"
    )


class NoneAsZero(Pattern):
    """Made from a gradient of zeros where there is none.

    A bucket is filled up with zeros for parameters that no rank has used: decay and momentum move them.
    """

    id = "none-as-zero"
    rogue = "none-is-zero"
    example = (
        "[fail] none-is-zero trainer/parity.models[unused-ws2]\n"
        "  step 1, spare: as if what has no gradient had one of zeros, with decay and momentum (none-as-zero)"
    )


class OfParts(Pattern):
    """Made of each rank's part of a gradient, by an optimizer that looks at more than an element.

    Muon, LAMB, LARS, Adafactor and Shampoo look at whole matrices or tensors, and so does a norm of each tensor: what
    they make of a shard is no shard of what they make of the whole ([finding](findings/muon.md)). Bring the gradient
    together before the step, or the norms over the ranks that share the tensor.
    """

    id = "of-parts"
    rogue = "makes-shards-orthogonal"
    example = (
        "parity: update of `head.weight` is made of each rank's part of the gradient, and not of the whole tensor, "
        "on which the optimizer looks at more than an element (step 1, fp64 and fp32), as 13 others of its kind"
    )


class LacksOthers(Pattern):
    """A gradient lacks what other ranks give back: what went to all of them came back from one alone.

    An all-gather has a backward that returns this rank's slice and adds up nothing, a state or a key that is handed
    to the next rank is detached, or a broadcast has no backward. The forward is right, and so is the loss. Parity
    repeats the plain model's backward with the gradient of the next output cut to what the rank has of it.
    """

    id = "lacks-others"
    rogue = "hands-over-without-a-backward"
    example = (
        "parity: gradient of the output of `blocks.1.attention.v` lacks what other ranks' parts of the output of "
        "`blocks.1.attention.core` give back, on rank 0 (step 1, fp64 and fp32)"
    )


class OtherDtypeOnly(Pattern):
    """The deviation is there in one dtype, and in another it is not, although rounding there would not hide it.

    Code that looks at the dtype has two paths, and one of them is wrong. On a group of one rank,
    `set_gradient_divide_factor` of FSDP2 divides twice in fp16 and fp64 and once in fp32 and bf16, so a test in fp32
    sees nothing ([finding](findings/fsdp-divide-factor-of-one.md)). What happened to the values stands behind the
    dtypes.
    """

    id = "other-dtype-only"
    rogue = "factor-on-a-group-of-one"
    example = (
        "parity: gradient of `head.bias` in fp64, and not in fp32, is 1/2 of the plain model's on ranks 0 and 1: "
        "the number of ranks, or of microbatches (step 1, fp64), as 35 others of its kind"
    )


class WrongAnnotation(Pattern):
    """A DTensor claims a placement that is not so: of a parameter, of its gradient, or of what a module returns.

    `DTensor.from_local(part, mesh, [Replicate()])` believes what it is given, and a module that takes `to_local()`
    trains right with it. What reads placements does not: a norm counts one part, `full_tensor()` and a saved state
    have one rank's, and a redistribution moves nothing. A gradient claims what `grad_placements` says, or else the
    weight's placement, whether it is a term of a sum or not. Outputs are claimed to be what the `input_layouts` and
    `output_layouts` of styles say. What ranks hold is read off dyed weights, and outputs are found by value.
    """

    id = "wrong-annotation"
    rogue = "claims-to-be-whole"
    example = (
        "parity: initialization of `blocks.0.mlp.up.bias` claims Replicate() over tp, and is not the same on ranks 0 "
        "and 1 (before the first step, fp64 and fp32)"
    )


PATTERNS = (
    Clipped(),
    Twice(),
    Anew(),
    Decay(),
    Groups(),
    Rows(),
    NoneAsZero(),
    OfParts(),
    LacksOthers(),
    OtherDtypeOnly(),
    WrongAnnotation(),
)
