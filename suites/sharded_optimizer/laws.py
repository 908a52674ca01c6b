"""The laws of ``sharded-optimizer`` about values: what a step does to the shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row, Variant
from everyrank.suites.acts import plainly, stayed, subject_acts
from everyrank.suites.compare import CLOSE_FP64, EXACT, Comparison, Tolerance, check
from everyrank.suites.contract import Contract, Point
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import CALLER_SYNCS, Arena, Parameter, Spec, arena
from everyrank.suites.sharded_optimizer.geometry import GEOMETRIES
from everyrank.suites.sharded_optimizer.sparse_gradients import give_some_rows

CONTRACT = Contract("sharded-optimizer", arena, fixtures=("process_group",), choices=(CALLER_SYNCS,))
law = CONTRACT.law

SGD = torch.optim.SGD

#: torch's fused kernels round the rest of a vector otherwise than its full lanes, and a shard has another rest.
FUSED = Tolerance(relative=1e-15)


def _plainest(place: Arena) -> None:
    """One parameter cut over the ranks and one that is whole, one step of SGD."""
    parameters = place.make([Spec((2 * place.size, 2)), Spec((2,), geometry=None)])
    with plainly("build, with SGD over two parameters,"):
        ours = place.build(SGD, parameters, lr=0.1)
    _stayed(place, parameters)
    place.give_gradients(parameters, 1)
    with plainly("a step of SGD"):
        ours.step()
    _stayed(place, parameters)


def _stayed(place: Arena, parameters: Sequence[Parameter]) -> None:
    for one in parameters:
        for tensor, _ in one.pieces:
            stayed(one.name, tensor.device, place.world.device)


CONTRACT.plainest = _plainest


def built(
    place: Arena, parameters: Sequence[Parameter], point: Point, optimizer: Any = None, **other: Any
) -> tuple[Any, Any]:
    """The subject and the reference, for a point that names an optimizer."""
    variant: Variant = point.values["variant"]
    chosen: Any = optimizer or point.values["row"].optimizer
    with subject_acts():
        ours = place.build(chosen, parameters, **variant.make(), **other)
    return ours, chosen([one.twin for one in parameters], **variant.make(), **other)


def step(
    place: Arena, pair: tuple[Any, Any], point: Point, parameters: Sequence[Parameter], number: int, own: bool = False
) -> None:
    """One step of the subject and of the reference, with equal gradients of these parameters."""
    ours, reference = pair
    row: Row = point.values["row"]
    if "closure" in row.needs:
        reference.step(place.closure(parameters, number, of_twins=True))
        with subject_acts():
            ours.step(place.closure(parameters, number))
        return
    repeated = point.values.get("repeated", False)
    if repeated or "sparse" in row.needs:
        give_some_rows(place, parameters, number, repeated)
    else:
        place.give_gradients(parameters, number, own)
    with subject_acts():
        ours.step()
    reference.step()


def trajectory(
    place: Arena, pair: tuple[Any, Any], point: Point, parameters: Sequence[Parameter], steps: int, own: bool = False
) -> None:
    fused = point.values["variant"].arguments.get("fused", False)
    comparison = place.comparison(FUSED if fused else EXACT)
    for number in range(1, steps + 1):
        step(place, pair, point, parameters, number, own)
        place.compare(comparison, number)
    comparison.verdict()


def _dtype(point: Point) -> torch.dtype:
    return point.values.get("dtype", torch.float64)  # type: ignore[no-any-return]


@law("parity.shard", points.shards)
def shard(place: Arena, point: Point) -> None:
    """After each of 10 steps with new data each rank's shard equals that slice of the reference, bit for bit."""
    sparse = "sparse" in point.values["row"].needs or point.values.get("repeated", False)
    parameters = place.make(points.uneven(point.values["dim"], not sparse), _dtype(point))
    trajectory(place, built(place, parameters, point), point, parameters, steps=10)


@law("parity.geometry", points.geometries)
def geometry(place: Arena, point: Point) -> None:
    """However a tensor is cut, and whoever holds which shards, or none, each shard gets its own update."""
    parameters = place.make(points.cut(point.values["geometry"], point.values["dim"]))
    trajectory(place, built(place, parameters, point), point, parameters, steps=3)


@law("parity.whole", points.beside)
def whole(place: Arena, point: Point) -> None:
    """Whole parameters, in whatever memory, are stepped with the mean of all ranks' gradients: alike on every rank.

    Where the subject declares `caller-syncs-whole`, the caller has averaged them.
    """
    parameters = place.make(point.values["specs"], _dtype(point))
    trajectory(place, built(place, parameters, point), point, parameters, steps=3, own=True)


class Signed(SGD):
    """A user's own, element by element as its base: it takes the sign of each gradient."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.sign()
        return super().step(closure)


def unchanged(base: Any) -> Any:
    """A subclass that does nothing of its own."""
    return type(f"Unchanged{base.__name__}", (base,), {})


@law("parity.subclass", points.subclasses)
def subclass(place: Arena, point: Point) -> None:
    """A subclass, with or without a step of its own, steps each shard as it steps that slice of the whole tensor."""
    base: Any = point.values["row"].optimizer
    parameters = place.make([Spec((7, 3)), Spec((4, 3), None), Spec((5,))])
    chosen = Signed if point.label == "signed-SGD" else unchanged(base)
    trajectory(place, built(place, parameters, point, chosen), point, parameters, steps=3)


@law("parity.whole-tensor", points.whole_tensors)
def whole_tensor(place: Arena, point: Point) -> None:
    """An optimizer that looks at the whole tensor, or a subclass of one, steps as it does on the whole tensor."""
    parameters = place.make(point.values["specs"])
    base = point.values["row"].optimizer
    pair = built(place, parameters, point, unchanged(base) if point.values.get("subclass") else base)
    evaluates = "closure" in point.values["row"].needs  # many times a step
    trajectory(place, pair, point, parameters, steps=2 if evaluates else 4)


_UNUSED = {"first": 0, "middle": 1, "last": 2}


@law("grad.none", points.nones)
def none(place: Arena, point: Point) -> None:
    """A None gradient is not a zero: its parameter stays, without decay or momentum; the others get their own."""
    parameters = place.make([Spec((6, 3)), Spec((6, 3), None), Spec((6, 3))])
    pair = built(place, parameters, point)
    where = point.values["where"]
    comparison = place.comparison()
    for number in (1, 2, 3):
        used: list[Parameter] = parameters
        if where != "all":
            used = [one for one in parameters if one.number != _UNUSED[where]]
        elif number == 2:
            used = []
        step(place, pair, point, used, number)
        place.compare(comparison, number)
    comparison.verdict()


@law("grad.zero", points.zeros)
def zero(place: Arena, point: Point) -> None:
    """zero_grad makes gradients None, unless told to make them zeros; what was None stays None."""
    arguments = point.values["arguments"]
    parameters = place.make([Spec((7, 3)), Spec((4, 3), None), Spec((5,)), Spec((2,), None)])
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1, momentum=0.9)
    place.give_gradients(parameters[:3], 1)
    with subject_acts():
        ours.zero_grad(**arguments)
    for one in parameters:
        for tensor, _ in one.pieces:
            if arguments.get("set_to_none", True) or one.number == 3:
                check(tensor.grad is None, f"{one.name} still has a gradient after zero_grad({arguments})")
            else:
                check(tensor.grad is not None, f"{one.name} has no gradient after zero_grad({arguments})")
                assert tensor.grad is not None
                check(not tensor.grad.any(), f"{one.name} has a gradient of {tensor.grad.flatten()[:3].tolist()}")


@law("closure", points.closures)
def closure(place: Arena, point: Point) -> None:
    """step(closure) evaluates it as often as torch.optim does, steps with what it gave, and returns its loss."""
    parameters = place.make(point.values["specs"])
    ours, reference = built(place, parameters, point)
    comparison = place.comparison()
    counts: list[dict[str, int]] = []
    losses: list[tuple[Any, torch.Tensor]] = []
    for number in (1, 2):
        counted = {"ours": 0, "torch.optim": 0}

        def count(who: str, evaluate: Callable[[], Any], counted: dict[str, int] = counted) -> Callable[[], Any]:
            def counting() -> Any:
                counted[who] += 1
                return evaluate()

            return counting

        expected = reference.step(count("torch.optim", place.closure(parameters, number, of_twins=True)))
        with subject_acts():
            loss = ours.step(count("ours", place.closure(parameters, number)))
        place.compare(comparison, number)
        counts.append(counted)
        losses.append((loss, torch.as_tensor(expected)))
    # The loss comes last: one that is lost, as a ledger may say, hides nothing else.
    comparison.verdict()
    for number, counted in enumerate(counts, 1):
        check(
            counted["ours"] == counted["torch.optim"],
            f"step {number} evaluated the closure so often: {counted}",
        )
    for number, (loss, expected) in enumerate(losses, 1):
        check(loss is not None, "step returned None instead of the closure's loss")
        check(
            bool(torch.as_tensor(loss) == expected),
            f"step {number} returned {float(loss)}, not the closure's loss {float(expected)}",
        )


@law("clip", points.clips)
def clip(place: Arena, point: Point) -> None:
    """clip_grad_norm_ takes the norm over the whole tensors, each element once, and scales every gradient by it."""
    most, norm = point.values["most"], point.values["norm"]
    how = GEOMETRIES[point.values["geometry"]][0]
    parameters = place.make([Spec((7, 3), how), Spec((4, 3), None), Spec((5, 2), how), Spec((2, 3), how)])
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1)
    place.give_gradients(parameters[:3], 1)
    expected = torch.nn.utils.clip_grad_norm_([one.twin for one in parameters], most, norm)
    with subject_acts():
        total = ours.clip_grad_norm_(most, norm)
    check(torch.is_tensor(total) or isinstance(total, float), f"the norm is {total!r}, which is no number")
    off = abs(float(total) - float(expected)) / float(expected)
    check(
        off <= CLOSE_FP64.relative,
        f"the norm is {float(total)}, that of the whole tensors {float(expected)}: off by {off:.1e} relative",
    )
    comparison = Comparison(CLOSE_FP64)
    found: dict[str, torch.Tensor] = {}
    wanted: dict[str, torch.Tensor] = {}
    for one in parameters[:3]:
        assert one.twin.grad is not None
        for number, (tensor, index) in enumerate(one.pieces):
            check(tensor.grad is not None, f"{one.name} lost its gradient")
            assert tensor.grad is not None
            if tensor.numel():
                name = f"the gradient of {one.name}, shard {number}"
                found[name], wanted[name] = tensor.grad, one.twin.grad[index]
    comparison.step(1, found, wanted)
    comparison.verdict()
