"""Which mistake of a converter explains that outputs part: the weights are put right by it, and then they agree."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from everyrank.model.counts import count
from everyrank.parity.handed.orders import regular
from everyrank.parity.handed.trace import Sources, Traced

#: How many mistakes are tried; each costs a forward of the other module.
MOST = 200

#: What becomes of the rows of a tensor; None if nothing does.
Rows = Callable[[torch.Tensor], torch.Tensor | None]

#: What tensors of the other are made of, by name.
Made = Mapping[str, Traced]


@dataclass(frozen=True)
class Repair:
    """A mistake, and what tensors would be made of without it."""

    words: str
    made: Made

    def first_changed(self, before: Made) -> tuple[str, int] | None:
        """Return the first element that changes: its tensor, and its position there."""
        for name, now in self.made.items():
            was = before[name]
            off = (now.numbers != was.numbers) | (now.factor != was.factor) | (now.summand != was.summand)
            if bool(off.any()):
                return name, int(off.reshape(-1).nonzero()[0])
        return None


def out_of_order(made: Made) -> Iterator[Repair]:
    """Yield tensors with a few elements out of a regular order, put right."""
    for name, each in made.items():
        if (right := regular(each.numbers)) is not None:
            yield Repair("out of the order of the others", {name: _with(each, right)})


def repairs(made: Made, sources: Sources, near: str) -> Iterator[Repair]:
    """Yield what may be wrong, the likeliest first; `near` is the name of the module that parts first."""
    tried: set[int] = set()
    for repair in _every(made, sources, near):
        numbers = [
            (name, each.numbers.numpy().tobytes(), each.factor is made[name].factor)
            for name, each in repair.made.items()
        ]
        if (key := hash((*numbers,))) not in tried and repair.first_changed(made) is not None:
            tried.add(key)
            yield repair
        if len(tried) == MOST:
            return


def _every(made: Made, sources: Sources, near: str) -> Iterator[Repair]:
    yield from out_of_order(made)
    groups = _groups(sources.shapes, near)
    for group in groups:
        yield from _transposed(made, sources, group)
        yield from _changed(made, sources, group)
    yield from _exchanged(made, sources)
    yield from _fused(made, sources)
    for group in groups:
        yield from _reordered(made, sources, group)


def _with(each: Traced, numbers: torch.Tensor) -> Traced:
    return Traced(each.name, numbers, each.factor, each.summand)


def kind_of(name: str) -> str:
    """Return what a name has in common with those of other layers."""
    return re.sub(r"\d+", "#", name)


def _same_kind(name: str, other: str) -> bool:
    return kind_of(name) == kind_of(other)


def _groups(names: Iterable[str], near: str) -> list[frozenset[str]]:
    """Return tensors that a mistake may have in common: of a module, of two beside it, and each alone; all layers'.

    Then those of each layer. The ones near a module come first.
    """
    by_module: dict[str, dict[str, set[str]]] = {}
    kinds: dict[str, set[str]] = {}
    for name in names:
        parent, module, _ = _split(kind_of(name))
        by_module.setdefault(parent, {}).setdefault(module, set()).add(name)
        kinds.setdefault(kind_of(name), set()).add(name)
    found = [group for modules in by_module.values() for group in modules.values()]
    for modules in by_module.values():
        found += [first | second for first, second in itertools.combinations(modules.values(), 2)]
    found += kinds.values()
    layers = [{name for name in group if name.startswith(each)} for group in found for each in _numbered(group)]
    stem = near.rpartition(".")[0]
    unique = dict.fromkeys(frozenset(each) for each in [*found, *layers])
    return sorted(unique, key=lambda each: not any(name.startswith((f"{near}.", f"{stem}.")) for name in each))


def _numbered(names: Iterable[str]) -> list[str]:
    """Return the names of the layers that tensors are in."""
    found = (re.match(r".*?\.\d+\.", name) for name in names)
    layers = [*dict.fromkeys(each[0] for each in found if each is not None)]
    return layers if len(layers) > 1 else []


def _split(name: str) -> tuple[str, str, str]:
    """Return the parent, the module and the tensor in a name."""
    module, _, leaf = name.rpartition(".")
    parent, _, own = module.rpartition(".")
    return parent, own, leaf


def _from(numbers: torch.Tensor, names: Iterable[str], sources: Sources) -> torch.Tensor:
    """Return which elements come from these tensors of the model."""
    found = torch.zeros(numbers.shape, dtype=torch.bool)
    for name in names:
        span = sources.span(name)
        found |= (numbers >= span.start) & (numbers < span.stop)
    return found


def _mapped(made: Made, sources: Sources, names: frozenset[str], change: Rows) -> dict[str, Traced] | None:
    """Return the other's tensors with the rows of some of the model's changed; None if no such rows are there."""
    found = {}
    for name, each in made.items():
        numbers = each.numbers.clone()
        for source in names:
            mine = _from(numbers, [source], sources)
            rows = mine.reshape(len(mine), -1).all(dim=1) if mine.ndim else mine.reshape(1)
            if not bool(rows.any()) or not numbers.ndim:
                continue
            if (changed := change(numbers[rows])) is not None:
                numbers[rows] = changed
        if not torch.equal(numbers, each.numbers):
            found[name] = _with(each, numbers)
    return found or None


def _transposed(made: Made, sources: Sources, names: frozenset[str]) -> Iterator[Repair]:
    def change(rows: torch.Tensor) -> torch.Tensor | None:
        return rows.t().contiguous() if rows.ndim == 2 and rows.shape[0] == rows.shape[1] else None

    if (found := _mapped(made, sources, names, change)) is not None:
        yield Repair("transposed", found)


def _changed(made: Made, sources: Sources, names: frozenset[str]) -> Iterator[Repair]:
    found = {}
    for name, each in made.items():
        mine = _from(each.numbers, names, sources)
        if bool((mine & ((each.factor != 1) | (each.summand != 0))).any()):
            factor, summand = each.factor.masked_fill(mine, 1.0), each.summand.masked_fill(mine, 0.0)
            found[name] = Traced(name, each.numbers, factor, summand)
    if found:
        yield Repair("changed by a factor or a summand", found)


def _exchanged(made: Made, sources: Sources) -> Iterator[Repair]:
    """Yield two modules of the model, or two tensors of one, in each other's place."""
    by_module: dict[str, dict[str, str]] = {}
    for name in sources.shapes:
        parts = name.split(".")
        for length in range(1, len(parts)):
            by_module.setdefault(".".join(parts[:length]), {})[".".join(parts[length:])] = name
    every = list(_exchanges(by_module, sources))
    kinds: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for first, second, pairs in every:
        for leaves in (tuple(pairs), *(((leaf,) for leaf in pairs) if len(pairs) > 1 else ())):
            key = (kind_of(first), kind_of(second), *leaves)
            kinds.setdefault(key, []).extend(pairs[leaf] for leaf in leaves)
    for each in kinds.values():
        yield _swapped(made, sources, each)
    for _, _, pairs in every:
        yield _swapped(made, sources, list(pairs.values()))


def _exchanges(
    modules: Mapping[str, Mapping[str, str]], sources: Sources
) -> Iterator[tuple[str, str, dict[str, tuple[str, str]]]]:
    for first, second in itertools.combinations(modules, 2):
        mine, other = modules[first], modules[second]
        if first.rpartition(".")[0] == second.rpartition(".")[0] and {*mine} == {*other}:
            pairs = {leaf: (mine[leaf], other[leaf]) for leaf in mine}
            if all(sources.shapes[mine] == sources.shapes[theirs] for mine, theirs in pairs.values()):
                yield first, second, pairs


def _swapped(made: Made, sources: Sources, pairs: Iterable[tuple[str, str]]) -> Repair:
    """Return what the other is made of if these pairs of the model's tensors change places."""
    found = {}
    pairs = [*dict.fromkeys(pairs)]
    names = [f"`{first}` and `{second}`" for first, second in pairs]
    others = f", as {count(len(names) - 1, 'other pair')}" if names[1:] else ""
    words = f"{names[0]} are exchanged{others}"
    for name, each in made.items():
        numbers = each.numbers.clone()
        for first, second in pairs:
            mine, theirs = sources.span(first), sources.span(second)
            is_first = (each.numbers >= mine.start) & (each.numbers < mine.stop)
            is_second = (each.numbers >= theirs.start) & (each.numbers < theirs.stop)
            numbers[is_first] += theirs.start - mine.start
            numbers[is_second] += mine.start - theirs.start
        if not torch.equal(numbers, each.numbers):
            found[name] = _with(each, numbers)
    return Repair(words, found)


def _reordered(made: Made, sources: Sources, names: frozenset[str]) -> Iterator[Repair]:
    """Yield rows in the model's own order, and in the two orders of rotary halves."""

    def sorted_rows(rows: torch.Tensor) -> torch.Tensor:
        return rows[rows.reshape(len(rows), -1)[:, 0].argsort()]

    if (found := _mapped(made, sources, names, sorted_rows)) is not None:
        yield Repair("rows are in another order than the model's", found)
    length = min((sources.shapes[name][0] for name in names if sources.shapes[name]), default=0)
    for size in (each for each in range(4, length + 1, 2) if length % each == 0):
        either = ", or the other way" if size == 4 else ""
        for has, belongs, is_apart in (("halves", "pairs", False), ("pairs", "halves", True)):

            def change(rows: torch.Tensor, size: int = size, is_apart: bool = is_apart) -> torch.Tensor | None:
                if len(rows) % size:
                    return None
                shape = (-1, size // 2, 2) if is_apart else (-1, 2, size // 2)
                heads = rows.view(*shape, *rows.shape[1:]).transpose(1, 2)
                return heads.reshape(rows.shape)

            def from_order(rows: torch.Tensor, change: Rows = change) -> torch.Tensor | None:
                return change(sorted_rows(rows))

            if (found := _mapped(made, sources, names, from_order)) is not None:
                yield Repair(f"rows of each head of {size} belong in {belongs}{either}", found)
            if (found := _mapped(made, sources, names, change)) is not None:
                yield Repair(f"rows of each head of {size} are in {has} where {belongs} belong{either}", found)


def _fused(made: Made, sources: Sources) -> Iterator[Repair]:
    """Yield the rows of fused tensors head by head, and one tensor after the other: of all of a module and layer."""
    orders = {name: dict(_orders(each.numbers, sources)) for name, each in made.items()}
    kinds = dict.fromkeys((kind_of(_module(name)), words) for name, each in orders.items() for words in each)
    for kind, words in kinds:
        mine = [name for name, each in orders.items() if kind_of(_module(name)) == kind and words in each]
        yield Repair(words, {name: _with(made[name], orders[name][words]) for name in mine})


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _orders(numbers: torch.Tensor, sources: Sources) -> Iterator[tuple[str, torch.Tensor]]:
    if not numbers.ndim or bool((numbers < 0).any()) or not numbers.numel():
        return
    first = numbers.reshape(len(numbers), -1)[:, 0].tolist()
    parts = len({sources.name(each) for each in first})
    if parts < 2 or len(numbers) % parts:
        return
    length = len(numbers) // parts
    for heads in (each for each in range(2, length + 1) if length % each == 0):
        for words, shape in (
            (f"one tensor after the other, and belong by {heads} heads", (parts, heads, -1)),
            (f"by {heads} heads, and belong one tensor after the other", (heads, parts, -1)),
        ):
            rows = numbers.view(*shape, *numbers.shape[1:]).transpose(0, 1)
            yield f"rows are {words}", rows.reshape(numbers.shape)
