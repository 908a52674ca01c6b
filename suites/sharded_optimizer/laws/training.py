"""The laws of ``sharded-optimizer`` about values: what a step does to the shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites.arena.points import OptimizerPoint
from everyrank.suites.arena.subject_errors import plainly, stayed, subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Comparison, Tolerance, check
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, Spec
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.geometry import GEOMETRIES
from everyrank.suites.sharded_optimizer.laws.sparse_gradients import give_some_rows

law = CONTRACT.law

SGD = torch.optim.SGD

#: torch's fused kernels round the last, partial vector in another way, and a shard has another last vector.
FUSED = Tolerance(relative=1e-15)


def plainest(arena: Arena) -> None:
    """Build over a sharded parameter and a whole one, and do one step of SGD."""
    parameters = arena.make([Spec((2 * arena.size, 2)), Spec((2,), geometry=None)])
    with plainly("build, with SGD over two parameters,"):
        ours = arena.build(SGD, parameters, lr=0.1)
    _check_devices(arena, parameters)
    arena.give_gradients(parameters, 1)
    with plainly("a step of SGD"):
        ours.step()
    _check_devices(arena, parameters)


def _check_devices(arena: Arena, parameters: Sequence[Parameter]) -> None:
    for param in parameters:
        for tensor, _ in param.pieces:
            stayed(param.name, tensor.device, arena.world.device)


def build_pair(
    arena: Arena, parameters: Sequence[Parameter], point: OptimizerPoint, optimizer: Any = None, **other: Any
) -> tuple[Any, Any]:
    """Build the subject and the reference, for a point that names an optimizer."""
    variant = point.variant
    chosen: Any = optimizer or point.row.optimizer
    with subject_acts():
        ours = arena.build(chosen, parameters, **variant.make(), **other)
    return ours, chosen([param.twin for param in parameters], **variant.make(), **other)


def step(
    arena: Arena,
    pair: tuple[Any, Any],
    row: Row,
    parameters: Sequence[Parameter],
    number: int,
    own: bool = False,
    repeated: bool = False,
) -> None:
    """Do one step of the subject and of the reference, with equal gradients of these parameters."""
    ours, reference = pair
    if "closure" in row.needs:
        reference.step(arena.closure(parameters, number, of_twins=True))
        with subject_acts():
            ours.step(arena.closure(parameters, number))
        return
    if repeated or "sparse" in row.needs:
        give_some_rows(arena, parameters, number, repeated)
    else:
        arena.give_gradients(parameters, number, own)
    with subject_acts():
        ours.step()
    reference.step()


def trajectory(
    arena: Arena,
    pair: tuple[Any, Any],
    point: OptimizerPoint,
    parameters: Sequence[Parameter],
    steps: int,
    own: bool = False,
    repeated: bool = False,
) -> None:
    """Train the subject and the reference, and compare them after each step."""
    fused = point.variant.arguments.get("fused", False)
    comparison = arena.comparison(FUSED if fused else EXACT)
    for number in range(1, steps + 1):
        step(arena, pair, point.row, parameters, number, own, repeated)
        arena.compare(comparison, number)
    comparison.verdict()


@law("parity.shard", points.shards)
def shard(arena: Arena, point: points.ShardPoint) -> None:
    """After each of 10 steps with new data, each rank's shard equals that slice of the reference, bit for bit."""
    sparse = "sparse" in point.row.needs or point.repeated
    parameters = arena.make(points.uneven(point.dim, not sparse), point.dtype)
    pair = build_pair(arena, parameters, point)
    trajectory(arena, pair, point, parameters, steps=10, repeated=point.repeated)


@law("parity.geometry", points.geometries)
def geometry(arena: Arena, point: points.GeometryPoint) -> None:
    """Each shard gets its own update, however a tensor is cut, and whichever ranks hold its shards, or none."""
    parameters = arena.make(points.cut(point.geometry, point.dim))
    trajectory(arena, build_pair(arena, parameters, point), point, parameters, steps=3)


@law("parity.whole", points.beside, groups=("AVERAGED",))
def whole(arena: Arena, point: points.WholePoint) -> None:
    """Whole parameters, in any memory layout, are stepped with the mean of all ranks' gradients, alike on every rank.

    If the subject declares `caller-syncs-whole`, the caller has averaged the gradients.
    """
    parameters = arena.make(point.specs, point.dtype)
    trajectory(arena, build_pair(arena, parameters, point), point, parameters, steps=3, own=True)


class Signed(SGD):
    """A user's optimizer, which works element by element as its base does: it takes the sign of each gradient.

    The gradients stay as they are: nothing says that a subject, which may step a copy, hands on what becomes of them.
    """

    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        held = [
            (parameter, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        for parameter, given in held:
            parameter.grad = given.sign()
        super().step()
        for parameter, given in held:
            parameter.grad = given
        return loss


def unchanged(base: Any) -> Any:
    """Return a subclass that changes nothing."""
    return type(f"Unchanged{base.__name__}", (base,), {})


@law("parity.subclass", points.subclasses)
def subclass(arena: Arena, point: points.SubclassPoint) -> None:
    """A subclass, with or without its own step(), steps each shard as it steps that slice of the whole tensor."""
    base = point.row.optimizer
    parameters = arena.make([Spec((7, 3)), Spec((4, 3), None), Spec((5,))])
    chosen = Signed if point.signed else unchanged(base)
    trajectory(arena, build_pair(arena, parameters, point, chosen), point, parameters, steps=3)


@law("parity.whole-tensor", points.whole_tensors)
def whole_tensor(arena: Arena, point: points.WholeTensorPoint) -> None:
    """An optimizer that needs the whole tensor, or a subclass of one, steps shards as it steps the whole tensor."""
    parameters = arena.make(point.specs)
    base = point.row.optimizer
    pair = build_pair(arena, parameters, point, unchanged(base) if point.subclass else base)
    evaluates = "closure" in point.row.needs  # several times in each step
    trajectory(arena, pair, point, parameters, steps=2 if evaluates else 4)


_UNUSED: dict[points.Unused, int] = {"first": 0, "middle": 1, "last": 2}


@law("grad.none", points.nones)
def none(arena: Arena, point: points.NonePoint) -> None:
    """A None gradient is not zero: its parameter does not change, not even by decay; the others are updated."""
    parameters = arena.make([Spec((6, 3)), Spec((6, 3), None), Spec((6, 3))])
    pair = build_pair(arena, parameters, point)
    unused = point.unused
    comparison = arena.comparison()
    for number in (1, 2, 3):
        used: list[Parameter] = parameters
        if unused != "all":
            used = [param for param in parameters if param.number != _UNUSED[unused]]
        elif number == 2:
            used = []
        step(arena, pair, point.row, used, number)
        arena.compare(comparison, number)
    comparison.verdict()


@law("grad.zero", points.zeros)
def zero(arena: Arena, point: points.ZeroPoint) -> None:
    """zero_grad makes gradients None, or zeros if set_to_none is False; a gradient that was None stays None."""
    arguments = point.arguments
    parameters = arena.make([Spec((7, 3)), Spec((4, 3), None), Spec((5,)), Spec((2,), None)])
    with subject_acts():
        ours = arena.build(SGD, parameters, lr=0.1, momentum=0.9)
    arena.give_gradients(parameters[:3], 1)
    with subject_acts():
        ours.zero_grad(**arguments)
    for param in parameters:
        for tensor, _ in param.pieces:
            if arguments.get("set_to_none", True) or param.number == 3:
                check(tensor.grad is None, f"{param.name} still has a gradient after zero_grad({arguments})")
            else:
                check(tensor.grad is not None, f"{param.name} has no gradient after zero_grad({arguments})")
                assert tensor.grad is not None
                check(not tensor.grad.any(), f"{param.name} has a gradient of {tensor.grad.flatten()[:3].tolist()}")


@law("closure", points.closures)
def closure(arena: Arena, point: points.SpecPoint) -> None:
    """step(closure) calls the closure as often as torch.optim does, uses its gradients, and returns its loss."""
    parameters = arena.make(point.specs)
    ours, reference = build_pair(arena, parameters, point)
    comparison = arena.comparison()
    counts: list[dict[str, int]] = []
    losses: list[tuple[Any, torch.Tensor]] = []
    for number in (1, 2):
        counted = {"ours": 0, "torch.optim": 0}

        def count(side: str, evaluate: Callable[[], Any], counted: dict[str, int] = counted) -> Callable[[], Any]:
            def counting() -> Any:
                counted[side] += 1
                return evaluate()

            return counting

        expected = reference.step(count("torch.optim", arena.closure(parameters, number, of_twins=True)))
        with subject_acts():
            loss = ours.step(count("ours", arena.closure(parameters, number)))
        arena.compare(comparison, number)
        counts.append(counted)
        losses.append((loss, torch.as_tensor(expected)))
    # The loss is checked last: if a ledger says that it is lost, this hides nothing else.
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
def clip(arena: Arena, point: points.ClipPoint) -> None:
    """clip_grad_norm_ takes the norm over the whole tensors, each element once, and scales every gradient by it."""
    most, norm = point.most, point.norm
    geometry = GEOMETRIES[point.geometry][0]
    parameters = arena.make(
        [Spec((7, 3), geometry), Spec((4, 3), None), Spec((5, 2), geometry), Spec((2, 3), geometry)]
    )
    with subject_acts():
        ours = arena.build(SGD, parameters, lr=0.1)
    arena.give_gradients(parameters[:3], 1)
    expected = torch.nn.utils.clip_grad_norm_([param.twin for param in parameters], most, norm)
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
    for param in parameters[:3]:
        assert param.twin.grad is not None
        for number, (tensor, index) in enumerate(param.pieces):
            check(tensor.grad is not None, f"{param.name} lost its gradient")
            assert tensor.grad is not None
            if tensor.numel():
                name = f"the gradient of {param.name}, shard {number}"
                found[name], wanted[name] = tensor.grad, param.twin.grad[index]
    comparison.step(1, found, wanted)
    comparison.verdict()
