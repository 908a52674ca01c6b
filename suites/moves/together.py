"""Act on all ranks: a deviation, a refusal or other values on one of them are those of all."""

from __future__ import annotations

import contextlib
import json
import traceback
import warnings
from collections.abc import Callable, Iterator

import torch
from everyrank import World, current_world
from everyrank.suites.errors import Deviation, NotApplicable, RanksDiverged

_REJECTED = "(the reference refuses)"


class Rejected(Exception):
    """The reference itself refuses the script, so there is nothing to compare."""


@contextlib.contextmanager
def reference_acts() -> Iterator[None]:
    """Reject the script if the reference raises: then it proves nothing about the subject."""
    try:
        yield
    except Exception as error:
        raise Rejected(str(error)) from error


def meet(world: World, point: str, text: str) -> list[str]:
    """Wait until all ranks are at this point, and return their texts."""
    met = world._meet(point, "", text)
    if met.missing or set(met.points) != {point}:
        points = "; ".join(f"rank {rank}: {reached or 'ended'}" for rank, reached in enumerate(met.points))
        raise RanksDiverged(f"the ranks went different ways: {points}")
    return met.texts


def exchanged(act: Callable[[], str]) -> list[str]:
    """Act on all ranks, within a move: each returns a text. Return the texts of all; raise where ``act`` raised."""
    text, raised = "", None
    try:
        text = act()
    except Exception as error:
        raised = error
    texts = meet(current_world(), "exchanged", text)
    if raised is not None:
        raise raised
    return texts


def act_and_compare(label: str, act: Callable[[], None], compare: Callable[[], str], driven: bool) -> None:
    __tracebackhide__ = True

    def acted() -> str:
        with _gradients_as_they_were():
            act()
        return "" if driven else compare()

    together(label, acted)
    if driven:
        together(label, compare)


@contextlib.contextmanager
def _gradients_as_they_were() -> Iterator[None]:
    """Check that it is left as it was whether gradients are computed; put it right for what comes next."""
    before = torch.is_grad_enabled()
    try:
        yield
        if torch.is_grad_enabled() != before:
            raise Deviation(f"left gradients {'off' if before else 'on'}: torch.is_grad_enabled() is {not before}")
    finally:
        torch.set_grad_enabled(before)


def together(label: str, act: Callable[[], str]) -> None:
    """Act on all ranks: each returns a text, which must be the same on all. All ranks raise alike."""
    __tracebackhide__ = True
    ended = _attempt(act)
    ends = [json.loads(text) for text in meet(current_world(), label, json.dumps(ended))]
    if any(kind == _REJECTED for kind, _ in ends):
        raise Rejected(next(text for kind, text in ends if kind == _REJECTED))
    for rank, (kind, packed) in enumerate(ends):
        if kind == "deviation":
            raise Deviation.unpacked(packed, f"{label}: on rank {rank}: ")
        if kind == "error":
            raise RuntimeError(f"{label}: on rank {rank}: the kit itself raised:\n{packed}")
    for rank, (_, text) in enumerate(ends):
        if text != ends[0][1]:
            raise Deviation(f"{label}: on rank {rank}: rank {rank} has other values than rank 0")


def _attempt(act: Callable[[], str]) -> tuple[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a script is about values; the laws are about warnings too
        try:
            return "done", act()
        except Rejected as error:
            return _REJECTED, str(error)
        except NotApplicable:
            return "done", ""
        except Deviation as deviation:
            return "deviation", deviation.packed()
        except Exception as error:
            return "error", "".join(traceback.format_exception(error))
