"""What a training consists of between two steps: parameters, what the optimizer keeps of them, and its rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from everyrank.parity.run.plain import rates
from everyrank.parity.setup.given import SEED, Setup, seed
from everyrank.parity.setup.models import Parallel, reference
from everyrank.parity.setup.optimizers import Optimizers
from everyrank.parity.values.dye import Holdings, Share
from everyrank.parity.values.exact import running_in
from everyrank.parity.values.names import parameters
from everyrank.parity.values.tree import local
from everyrank.suites.compare.patterns.texts import index_text

#: How far values may be from those of one process, in fp64, relative to the largest of them.
LIMIT = 1e-8

#: What is kept of a parameter: "" for its values, or the optimizer's name of it, and the parameter's name.
Key = tuple[str, str]


@dataclass
class State:
    """A training between two steps, by the plain model's names."""

    values: dict[Key, torch.Tensor] = field(default_factory=dict)
    numbers: dict[Key, float] = field(default_factory=dict)
    """As how many steps were made with a parameter."""
    rates: tuple[float, ...] = ()


def plain_states(setup: Setup, ends: Sequence[int]) -> list[State]:
    """Train the plain model in one process; return its state after as many steps as each of `ends` says."""
    model = reference(setup, torch.float64, exact=True, cast=False, prepare=lambda model: None)
    found = {0: _state(model.parameters, model.optimizer)}
    for step in range(max(ends)):
        batch = setup.whole_batch(step, torch.float64)
        seed(SEED + step)
        with running_in(torch.float64, True):
            setup.share_of(setup.loss(model.made, batch), step).backward()
            if setup.clip is not None:
                torch.nn.utils.clip_grad_norm_([*model.parameters.values()], setup.clip)
            model.optimizer.step()
            model.optimizer.end()
        found[step + 1] = _state(model.parameters, model.optimizer)
    return [found[end] for end in ends]


def _state(named: Mapping[str, torch.nn.Parameter], optimizer: Optimizers) -> State:
    found = State(rates=rates(optimizer))
    for name, parameter in named.items():
        found.values["", name] = local(parameter.detach()).clone()
        found.values |= {(kind, name): value.clone() for kind, value in optimizer.state_of(parameter)}
        found.numbers |= {(kind, name): number for kind, number in optimizer.numbers_of(parameter)}
    return found


@dataclass(frozen=True)
class Change:
    """Something of a rank's state that is not what it should be."""

    order: tuple[int, int]
    kind: str
    """What the optimizer calls it; empty for the parameter, "rates" for its rates."""
    tensor: str
    words: str


def changes(
    parallel: Parallel, holdings: Holdings, right: State, earlier: Sequence[tuple[str, State]]
) -> Iterator[Change]:
    """Yield what is wrong of the state that a rank has; `earlier` are other states that it might have, with names."""
    names = [*dict.fromkeys(name for _, name in right.values)]
    for key, parameter in parameters(parallel.modules):
        shares = [share for share in holdings.shares if share.key == key]
        mine = {"": local(parameter.detach()), **dict(parallel.optimizer.state_of(parameter))}
        numbers = dict(parallel.optimizer.numbers_of(parameter))
        for share in shares:
            number = names.index(share.name)
            for kind in [kind for kind, name in right.values if name == share.name]:
                known = [(words, state.values.get((kind, share.name))) for words, state in earlier]
                words = _of_values(mine.get(kind), share, right.values[kind, share.name], known)
                if words:
                    yield Change((1 if kind else 0, number), kind, share.name, words)
            for kind in [kind for kind, name in right.numbers if name == share.name]:
                wanted = right.numbers[kind, share.name]
                if numbers.get(kind) != wanted:
                    has = f"is {numbers[kind]:g}" if kind in numbers else "is missing"
                    yield Change((2, number), kind, share.name, f"{has} instead of {wanted:g}")
    found = rates(parallel.optimizer)
    if not all(any(abs(rate - other) <= 1e-12 for other in right.rates) for rate in found):
        has, wanted_rates = (" and ".join(f"{rate:.6g}" for rate in each) for each in (found, right.rates))
        yield Change((3, 0), "rates", "", f"is {has} instead of {wanted_rates}")


def _of_values(
    mine: torch.Tensor | None, share: Share, whole: torch.Tensor, earlier: Sequence[tuple[str, torch.Tensor | None]]
) -> str:
    """Return what is wrong of values; nothing if they are right."""
    expected = share.expected(whole)
    if mine is None:
        return "is missing" if bool(expected.any()) else ""
    found = share.read(mine)
    limit = LIMIT * max(float(whole.abs().max()), 1e-12)
    off = ~((found - expected).abs() <= limit)
    if not bool(off.any()):
        return ""
    first = int(off.nonzero()[0])
    index = index_text(int(share.plain.ids()[first]), whole.shape)
    if not bool(found.any()):
        return "is zero"
    for words, other in earlier:
        if other is not None and bool(((found - share.expected(other)).abs() <= limit).all()):
            return f"is as it was {words}"
    near = (whole.reshape(-1) - found[first]).abs()
    if float(near.min()) <= limit:
        return f"has at {index} what belongs to {index_text(int(near.argmin()), whole.shape)}"
    return f"has {float(found[first]):.6g} instead of {float(expected[first]):.6g} at {index}"
