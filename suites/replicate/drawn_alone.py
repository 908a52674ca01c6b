"""The actions of a draw of ``replicate`` that use their own objects and process group.

In these, ranks are done or leave at different times: if they used the draw's objects, their state would be unknown.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from everyrank import current_world
from everyrank.suites.arena.groups import NAMES_RANKS, collect, error_of, names_rank, own_group, text_of
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.compare.reference import SEED, mean
from everyrank.suites.replicate import grammar as g
from everyrank.suites.replicate.arena import Arena, dense
from everyrank.suites.replicate.drawn_model import Part, batch, loss, make
from everyrank.suites.replicate.laws.errors import sabotage
from torch import nn

_RATE = 0.1

#: How far values may be off: in a few steps with few parameters, the order of a sum differs.
_CLOSE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-3}


def train_unevenly(arena: Arena, draw: g.Draw, action: g.Uneven, number: int) -> None:
    """Check that a rank without a batch counts as zero, and that all ranks end equal."""
    twin = _model(draw)
    for step in range(max(action.batches)):
        _reference_step(twin, action, number, step)
    with own_group():
        module: Any = _built(arena, draw)
        named = dict(arena.wrappers.parameters(module))
        with subject_acts(), module.join():
            for step in range(action.batches[arena.rank]):
                module.zero_grad()
                _backward(module, number, step, arena.rank)
                _descend(list(named.values()))
        for name, expected in twin.named_parameters():
            _check_close(name, named[name].detach(), expected.detach())
        del module, named
        collect()


def _model(draw: g.Draw) -> Part:
    return make(replace(draw, apart=False, ignored=""), SEED)


def _built(arena: Arena, draw: g.Draw) -> nn.Module:
    with subject_acts():
        return arena.build(_model(draw))


def _reference_step(twin: Part, action: g.Uneven, number: int, step: int) -> None:
    found: list[dict[str, torch.Tensor | None]] = []
    for rank, batches in enumerate(action.batches):
        twin.zero_grad()
        if step < batches:
            _backward(twin, number, step, rank)
        found.append({name: parameter.grad for name, parameter in twin.named_parameters()})
    for name, parameter in twin.named_parameters():
        parameter.grad = mean([gradients[name] for gradients in found])
    _descend(list(twin.parameters()))


def _backward(module: nn.Module, number: int, step: int, rank: int) -> None:
    rows, targets = batch(number, step, rank, rowless=False)
    loss(module(rows), targets).backward()


def _descend(parameters: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.sub_(dense(parameter.grad), alpha=_RATE)


def _check_close(name: str, ours: torch.Tensor, expected: torch.Tensor) -> None:
    if not expected.numel():
        return
    off = float((ours - expected).abs().max())
    check(
        off <= _CLOSE[expected.dtype] * (1 + float(expected.abs().max())),
        f"{name}, after join(), is off by {off:.3g}",
    )


def fail(arena: Arena, draw: g.Draw, action: g.Fail, number: int) -> None:
    """Check that the failing rank gets its own error, and that all others get one as well."""
    with own_group() as group:
        module = _built(arena, draw)
        with subject_acts():
            _backward(module, number, 0, arena.rank)
        current_world().barrier()
        culprit = arena.rank == action.rank
        error = None
        if action.during == "idle":
            if not culprit:
                group.shorten_patience()
                error = error_of(partial(_backward, module, number, 1, arena.rank))
            current_world().barrier()
        else:
            with sabotage(arena.inside(module), action.during) if culprit else contextlib.nullcontext():
                error = error_of(partial(_backward, module, number, 1, arena.rank))
        group.leave()
        raised, text = error is not None, text_of(error)
        named = NAMES_RANKS not in arena.subject.declares or names_rank(error, action.rank)
        del module, error  # they hold the group's sockets
        collect()
    if not culprit:
        check(raised, f"trained on, though rank {action.rank} did not")
        check(named, f"the error does not name rank {action.rank}: {text}")
