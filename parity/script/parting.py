"""The first moment at which two sizes part, as a user reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: How a tensor of a moment is called, and all of its tensors together.
SUBJECTS = {
    "weight": ("weight `{}`", "weights"),
    "buffer": ("buffer `{}`", "buffers"),
    "gradient at the clip": ("gradient of `{}`, as the clip gets it,", "gradients"),
    "norm": ("norm of the gradients", "norm"),
    "gradient": ("gradient of `{}`", "gradients"),
    "rate": ("learning rate", "learning rates"),
    "state": ("the optimizer's `{}`", "the optimizer's state"),
    "parameter": ("`{}` after the optimizer's step", "parameters"),
}
DOINGS = {
    "weight": "a module that is called for the first time",
    "buffer": "buffers",
    "gradient at the clip": "a clip of the gradients",
    "norm": "a clip of the gradients",
    "gradient": "an optimizer's step",
    "rate": "an optimizer's step",
    "state": "an optimizer's step",
    "parameter": "an optimizer's step",
}


@dataclass(frozen=True)
class Parting:
    """The first moment at which two sizes part."""

    step: int
    subject: str
    text: str
    line: str
    same: int = 0
    """To how many others of the kind the same has happened."""
    agreed: tuple[str, ...] = ()
    """What agrees before it, in this step."""
    besides: str = ""
    """What a further line says."""
    kind: str = ""
    names: tuple[str, ...] = ()
    """The tensors to which it has happened, the first one first."""
    pattern: str = ""


def lines_of(parting: Parting) -> Iterator[str]:
    """Yield the parting as lines; the first says it all."""
    line = f" ({parting.line})" if parting.line else ""
    same = f", as {parting.same} other{'s' if parting.same > 1 else ''} of its kind" if parting.same else ""
    time = f"step {parting.step}" if parting.line else f"before step {parting.step}"
    yield f"{time}: {parting.subject} {parting.text}{line}{same}"
    if parting.besides:
        yield f"  {parting.besides}"
    if parting.agreed:
        yield f"  before it, in this step, these agree: {', '.join(dict.fromkeys(parting.agreed))}"
