"""The arena of ``rpc-optimizer``: rank 0 drives, and the parameters are on their owners."""

from __future__ import annotations

import contextlib
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from everyrank import current_world
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation


def error_of(action: Callable[[], Any], description: str) -> Exception:
    """Return the error that the action raises, or raise a Deviation that names the action if there is none."""
    try:
        action()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # frames hold RRefs, which would look as if they were left behind
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        return error
    raise Deviation(f"{description} did not raise")


#: The choice of a subject whose errors keep letters outside ASCII, which torch's RPC alone does not.
KEEPS_LETTERS = "keeps-letters"

#: How long in seconds an effect on another worker may take; only a failing case waits this long.
PATIENCE = 5.0


def eventually(holds: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true: a worker may need a moment to free something."""
    until = time.monotonic() + PATIENCE
    while not (held := holds()) and time.monotonic() < until:
        time.sleep(0.005)
    return held


@dataclass(frozen=True)
class Arena:
    """The subject of one case, and the size of its world, at the driver."""

    subject: Subject
    size: int


@contextlib.contextmanager
def open_arena(subject: Subject, point: Point) -> Iterator[Arena | None]:
    """Give rank 0 its arena, and the others None: their agents serve rank 0 until it is done."""
    world = current_world()
    acting[:] = [subject]
    for reset in resets:
        reset()
    world.barrier()  # from here on a law may call any rank
    yield Arena(subject, world.size) if world.rank == 0 else None


def check_step(subject: Subject, built: Any) -> None:
    """Raise unless what the subject has built has a step."""
    if not callable(getattr(built, "step", None)):
        raise BrokenAdapter(
            f"build of {subject.name} returned a {type(built).__name__}, which has no step(context_id)"
        )


#: The subject of this rank's case, for functions that run on an owner: a subject cannot be sent.
acting: list[Subject] = []

#: Modules that keep state on owners add a function that resets it: a case that failed may have left some.
resets: list[Callable[[], None]] = []


def globals_now() -> dict[str, str]:
    """Describe the global state of this process, an owner or the caller."""
    return {
        "the RNG": str(hash(torch.get_rng_state().numpy().tobytes())),
        "Python's RNG": str(hash(random.getstate())),
        "the default dtype": str(torch.get_default_dtype()),
        "the grad mode": str(torch.is_grad_enabled()),
        "the warnings filters": str(len(warnings.filters)),
    }
