"""The laws of ``rpc-optimizer`` about values: what a step does to the parameters."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from everyrank.fixtures.optimizers import Row, Variant, rows
from everyrank.fixtures.optimizers import row as find_row
from everyrank.suites.acts import plainly, stayed, subject_acts
from everyrank.suites.compare import check, same
from everyrank.suites.contract import Contract, Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter, arena, device_of, loss, sparse_loss

CONTRACT = Contract(
    "rpc-optimizer",
    arena,
    fixtures=("warm_rpc_agent",),
    marks=(pytest.mark.rpc(num_worker_threads=4, rpc_timeout=20),),
)
law = CONTRACT.law

SGD = torch.optim.SGD
SHARED = [(1, (3, 4)), (2, (5,)), (1, (2, 3)), (0, (4,))]


def _plainest(place: Arena) -> None:
    """One parameter on the last worker, one step of SGD."""
    (one,) = place.own([(place.size - 1, (2,))])
    with plainly("build, with SGD over one parameter,"):
        ours = place.build(SGD, [one], lr=0.1)
    stayed("the parameter", place.on(one.owner, device_of, one.rref), "cpu")
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [place.remote_loss([one], place.inputs([one], 1), loss)])
        with plainly("a step of SGD"):
            ours.step(context_id)
    stayed("the parameter", place.on(one.owner, device_of, one.rref), "cpu")


CONTRACT.plainest = _plainest


def built(place: Arena, parameters: list[Parameter], point: Point) -> tuple[Any, Any]:
    """The subject and the reference, for a point that names an optimizer."""
    row: Row = point.values["row"]
    variant: Variant = point.values["variant"]
    with subject_acts():
        ours = place.build(row.optimizer, parameters, **variant.make())
    return ours, row.optimizer([one.twin for one in parameters], **variant.make())


def compare_steps(
    place: Arena, parameters: list[Parameter], ours: Any, reference: Any, steps: int, how: Any = None
) -> None:
    comparison = place.comparison()
    for step in range(1, steps + 1):
        place.step(ours, parameters, step, how)
        place.reference_step(reference, parameters, step, how)
        comparison.step(step, place.values(), place.twins())
    comparison.verdict()


def of_row(place: Arena, point: Point, dtype: torch.dtype = torch.float64) -> list[Parameter]:
    owners = [1 + number % (point.size - 1) for number in range(3)]
    return place.own(points.shapes(point.values["row"], [*owners, 0]), dtype)


@law("parity.one-step", points.variants)
def one_step(place: Arena, point: Point) -> None:
    """After one step each parameter equals the reference, bit for bit."""
    parameters = of_row(place, point)
    compare_steps(place, parameters, *built(place, parameters, point), steps=1)


@law("parity.trajectory", points.variants)
def trajectory(place: Arena, point: Point) -> None:
    """After each of 10 steps with new data each parameter equals the reference, bit for bit."""
    parameters = of_row(place, point)
    compare_steps(place, parameters, *built(place, parameters, point), steps=10)


@law("parity.defaults", points.defaults)
def defaults(place: Arena, point: Point) -> None:
    """With no arguments at all, the defaults are those of torch.optim, in the second and third step too."""
    parameters = of_row(place, point, torch.float32)
    compare_steps(place, parameters, *built(place, parameters, point), steps=3)


_OWNERSHIP = {
    "one-owner": [(1, (3, 2)), (1, (4,)), (1, (2, 2))],
    "each-its-own": [(0, (3, 2)), (1, (4,)), (2, (2, 2))],
    "caller-only": [(0, (3, 2)), (0, (4,))],
    "interleaved": [(1, (3,)), (2, (4,)), (1, (2, 2)), (2, (5,)), (0, (1,)), (1, (2,))],
    "equal-shapes": [(1, (3,)), (2, (3,)), (1, (3,)), (2, (3,)), (0, (3,))],
}


def _ownerships() -> Any:
    for name in _OWNERSHIP:
        yield Point(name, 3, {"specs": _OWNERSHIP[name]}, core=True)


@law("parity.ownership", _ownerships)
def ownership(place: Arena, point: Point) -> None:
    """Whoever owns which parameters, and in whatever order, each gets its own update."""
    parameters = place.own(point.values["specs"])
    with subject_acts():
        ours = place.build(torch.optim.Adam, parameters, lr=0.1)
    compare_steps(place, parameters, ours, torch.optim.Adam([one.twin for one in parameters], lr=0.1), steps=3)


def _dtypes() -> Any:
    names = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "complex": torch.complex128}
    for row in rows():
        if row.needs & {"closure", "sparse"}:
            continue
        for name, dtype in names.items():
            refused = "" if name != "complex" or "complex" in row.takes else f"{row.name} takes no complex parameters"
            values = {"row": row, "variant": row.plain, "dtype": dtype}
            yield Point(f"{row.name}-{name}", 2, values, row.name == "SGD", refused, row.name)
        everything = next((each for each in row.variants if each.name == "everything"), row.plain)
        if "complex" in row.takes - everything.refuses:
            values = {"row": row, "variant": everything, "dtype": torch.complex128}
            yield Point(f"{row.name}-complex-everything", 2, values, row.name == "SGD", "", row.name)
    sgd = find_row("SGD")
    for name, shape in (("zero-dim", ()), ("empty", (0, 3))):
        values = {"row": sgd, "variant": sgd.plain, "shape": shape, "dtype": torch.float64}
        yield Point(f"SGD-{name}", 2, values, True, "", "SGD")


@law("parity.dtype", _dtypes)
def dtype(place: Arena, point: Point) -> None:
    """fp32, fp64, bf16 and complex parameters (with all arguments), 0-dim and empty ones, step as in torch.optim."""
    kind = point.values["dtype"]
    if "shape" in point.values:
        parameters = place.own([(1, (2, 2)), (1, point.values["shape"]), (1, (3,))], kind)
    else:
        parameters = of_row(place, point, kind)
    compare_steps(place, parameters, *built(place, parameters, point), steps=3)


def _sparse() -> Any:
    for row in rows():
        if "sparse" in row.takes and "closure" not in row.needs:
            yield Point(f"{row.name}-lr", 2, {"row": row, "variant": row.plain}, True, "", row.name)


@law("parity.sparse", _sparse)
def sparse(place: Arena, point: Point) -> None:
    """Sparse gradients, where the optimizer takes them."""
    parameters = place.own([(1, (6, 3)), (1, (4, 2))])
    compare_steps(place, parameters, *built(place, parameters, point), steps=3, how=sparse_loss)


@law("none.frozen", lambda: points.plain(2))
def frozen(place: Arena, point: Point) -> None:
    """A parameter without requires_grad never moves, in the loss or not, and those beside it get their own update."""
    first = place.own([(1, (3,))])
    still = place.own([(1, (3,))], requires_grad=False)
    last = place.own([(1, (3,))])
    everyone = [*first, *still, *last]
    with subject_acts():
        ours = place.build(SGD, everyone, lr=0.1, momentum=0.9, weight_decay=0.1)
    reference = SGD([one.twin for one in everyone], lr=0.1, momentum=0.9, weight_decay=0.1)
    comparison = place.comparison()
    for step, used in ((1, [*first, *last]), (2, everyone)):
        place.step(ours, used, step)
        place.reference_step(reference, used, step)
        comparison.step(step, place.values(), place.twins())
    comparison.verdict()


#: By where the None gradient is: the parameters that are used in each step. The last is the caller's own.
_POSITIONS: dict[str, list[list[int]]] = {
    "first": [[1, 2]] * 3,
    "middle": [[0, 2]] * 3,
    "last": [[0, 1]] * 3,
    "none": [[0, 1, 2]] * 3,
    "all": [[3], [3], [0, 1, 2, 3]],
}


def _positions() -> Any:
    for row in rows():
        if row.needs & {"closure", "sparse"}:
            continue
        for where, used in _POSITIONS.items():
            values = {"row": row, "variant": row.plain, "used": used}
            yield Point(f"{row.name}-{where}", 2, values, row.name in ("SGD", "Adam"), "", row.name)


@law("none.position", _positions)
def position(place: Arena, point: Point) -> None:
    """With a None gradient first, in the middle or last, the others get their own; all None leave no trace."""
    parameters = place.own([(owner, (3, 2)) for owner in (1, 1, 1, 0)])
    ours, reference = built(place, parameters, point)
    comparison = place.comparison()
    for step, numbers in enumerate(point.values["used"], 1):
        used = [parameters[number] for number in numbers]
        place.step(ours, used, step)
        place.reference_step(reference, used, step)
        comparison.step(step, place.values(), place.twins())
    comparison.verdict()


@law("none.with-decay", lambda: points.plain(2))
def with_decay(place: Arena, point: Point) -> None:
    """A None gradient is not a zero: no decay, no momentum."""
    parameters = place.own([(1, (3,)), (1, (4,))])
    keywords = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5}
    with subject_acts():
        ours = place.build(SGD, parameters, **keywords)
    reference = SGD([one.twin for one in parameters], **keywords)
    comparison = place.comparison()
    for step in (1, 2):
        place.step(ours, parameters[1:], step)
        place.reference_step(reference, parameters[1:], step)
        comparison.step(step, place.values(), place.twins())
    comparison.verdict()


def _two_classes(**of_sgd: Any) -> Any:
    """One class that torch has a functional twin for, and one that it has none for: two paths through torch's."""
    yield Point("", 2, {"optimizer": SGD, "keywords": {"lr": 0.1, **of_sgd}}, core=True)
    yield Point("NAdam", 2, {"optimizer": torch.optim.NAdam, "keywords": {"lr": 0.1}}, core=True, optimizer="NAdam")


def _built_plainly(place: Arena, parameters: list[Parameter], point: Point) -> Any:
    with subject_acts():
        return place.build(point.values["optimizer"], parameters, **point.values["keywords"])


@law("none.later-context", _two_classes)
def later_context(place: Arena, point: Point) -> None:
    """A parameter used in context 1 and absent from context 2 does not move in step 2."""
    parameters = place.own([(1, (3,)), (1, (3,))])
    ours = _built_plainly(place, parameters, point)
    place.step_that_moves(ours, parameters)
    before = parameters[0].value()
    place.step(ours, parameters[1:], 2)
    same(parameters[0].value(), before, "the parameter that context 2 does not use")


@law("context.empty", lambda: _two_classes(momentum=0.9))
def empty(place: Arena, point: Point) -> None:
    """A context with no backward moves nothing."""
    parameters = place.own([*SHARED[:1], (0, (2,))])
    ours = _built_plainly(place, parameters, point)
    place.step_that_moves(ours, parameters)
    before = place.values()
    place.step(ours, [], 2)
    for name, value in place.values().items():
        same(value, before[name], f"{name}, after a step with an empty context")


@law("context.own", lambda: points.plain(2))
def own(place: Arena, point: Point) -> None:
    """step uses the gradients of the given context, not those of a newer one that is open beside it."""
    parameters = place.own([(1, (3,)), (1, (4,))])
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1)
    reference = SGD([one.twin for one in parameters], lr=0.1)
    comparison = place.comparison()
    # A thread has one context at a time, so the newer one is another thread's.
    opened, done = threading.Event(), threading.Event()

    def newer() -> None:
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [place.remote_loss(parameters, place.inputs(parameters, 2), loss)])
            opened.set()
            done.wait(20)

    with dist_autograd.context() as older:
        dist_autograd.backward(older, [place.remote_loss(parameters, place.inputs(parameters, 1), loss)])
        beside = threading.Thread(target=newer)
        beside.start()
        try:
            check(opened.wait(20), "a context beside the first could not be opened")
            with subject_acts():
                ours.step(older)
        finally:
            done.set()
            beside.join()
    place.reference_step(reference, parameters, 1)
    comparison.step(1, place.values(), place.twins())
    comparison.verdict()


def _invalid_contexts() -> Any:
    for name in ("unknown", "closed"):
        yield Point(name, 2, {"which": name}, core=True)


@law("context.invalid", _invalid_contexts)
def invalid(place: Arena, point: Point) -> None:
    """An unknown or closed context raises at the caller, and nothing has moved."""
    parameters = place.own([(1, (3,)), (0, (2,))])
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1, momentum=0.9)
    place.step_that_moves(ours, parameters)
    before = place.values()
    with dist_autograd.context() as context_id:
        dist_autograd.backward(context_id, [place.remote_loss(parameters, place.inputs(parameters, 2), loss)])
    wrong = context_id if point.values["which"] == "closed" else context_id + 12345
    try:
        ours.step(wrong)
    except Exception:
        pass
    else:
        check(False, f"step with {point.values['which']} context id {wrong} did not raise")
    for name, value in place.values().items():
        same(value, before[name], f"{name}, after the refused step")


@law("state.kept", lambda: points.plain(2))
def kept(place: Arena, point: Point) -> None:
    """Optimizer state lives across steps and contexts: momentum grows as in one long run."""
    parameters = place.own([(1, (3,)), (1, (4,))])
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1, momentum=0.9)
    compare_steps(place, parameters, ours, SGD([one.twin for one in parameters], lr=0.1, momentum=0.9), steps=5)


@law("owned.only", _two_classes)
def owned_only(place: Arena, point: Point) -> None:
    """Nothing is written to parameters that it was not given, .grad included."""
    given = place.own([(1, (3,))])
    other = place.own([(1, (3,))])
    ours = _built_plainly(place, given, point)
    place.step_that_moves(ours, given)
    before = other[0].value()
    place.step(ours, [*given, *other], 2)
    same(other[0].value(), before, "a parameter that the optimizer was not given")
    check(
        place.on(1, has_no_grad, other[0].rref), "the .grad of a parameter that the optimizer was not given was set"
    )


def has_no_grad(rref: Any) -> bool:
    """On an owner."""
    return rref.local_value().grad is None
