"""The laws of ``replicate`` about the module itself: what is equal on all ranks, what goes in, what is saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from everyrank.suites.acts import subject_acts
from everyrank.suites.compare import same
from everyrank.suites.contract import Point
from everyrank.suites.errors import Deviation, NotApplicable
from everyrank.suites.reference import Plan, order_matched
from everyrank.suites.replicate import points
from everyrank.suites.replicate.arena import Arena, error_of
from everyrank.suites.replicate.laws import CONTRACT, own_gradients
from torch import nn

law = CONTRACT.law

_NO_GPU = "" if torch.cuda.device_count() else "there is no GPU here"


def _inits() -> Iterator[Point]:
    yield from points.plain(2, 3, label="built", model="buffers")
    yield from points.plain(2, 3, label="trained")
    yield from points.plain(2, 3, label="frozen", model="frozen")
    yield from points.plain(2, label="trained-scalars", core=(), model="scalars")
    for model in ("frozen", "gaps"):  # also for what wraps first and sends with the first forward
        yield from points.plain(2, label=f"trained-{model}", core=(2,), model=model)
    for model, core in (("gaps", (2,)), ("large", ())):
        yield from points.plain(2, label=f"built-{model}", core=core, model=model, steps=1)
    yield from points.plain(2, 3, label="buffers", core=(2,), model="buffers")
    yield from points.plain(2, label="buffers-gaps", core=(), model="gaps")


@law("init.sync", _inits)
def init_sync(place: Arena, point: Point) -> None:
    """Ranks with different seeds have rank 0's parameters when the module is wrapped, and train from them.

    They have rank 0's buffers then, too; or keep their own, where that is declared.
    """
    plan: Plan = point.values["plan"]
    if point.label.startswith("buffers"):
        _buffers_at_the_start(place, plan)
        return
    module = place.built(plan, seed_by_rank=True)
    if point.label.startswith(("built", "frozen")):
        for name, value in place.values(module).items():
            same(value, order_matched(plan).start[name], f"{name}, as it is wrapped")
        return
    place.follow(plan, module).verdict()


def _buffers_at_the_start(place: Arena, plan: Plan) -> None:
    module = plan.build()
    for name, value in _distinct(module, place.rank, 1).items():
        module.get_buffer(name).copy_(value)
    expected = _distinct(module, place.rank if place.local_buffers else 0, 1)
    with subject_acts():
        module = place.build(module)
    for name, value in place.inside(module).named_buffers():
        same(value, expected[name], f"buffer {name}, as it is wrapped")


_BUFFERS = ("train", "eval", "reassigned", "asked", "refused")


def _buffers() -> Iterator[Point]:
    for manner in _BUFFERS:
        core = {"asked": (), "refused": (2,), "reassigned": (2,)}.get(manner, (3,))
        yield from points.plain(2, 3, label=manner, model="buffers", core=core, more={"manner": manner})


@law("buffers", _buffers)
def buffers(place: Arena, point: Point) -> None:
    """Before each forward, in train and eval, buffers of every dtype are rank 0's; or stay local, where declared."""
    plan: Plan = point.values["plan"]
    manner = point.values["manner"]
    asked = {"asked": {"broadcast_buffers": True}, "refused": {"broadcast_buffers": False}}.get(manner, {})
    local = manner == "refused" or (place.local_buffers and manner != "asked")
    module = place.built(plan, **asked)
    inside = place.inside(module)
    seen: list[dict[str, torch.Tensor]] = []
    inside.get_submodule("first").register_forward_pre_hook(lambda *_: seen.append(_copies(inside)))
    module.train(manner != "eval")
    expected = []
    for step in (1, 2, 3):
        for name, value in _distinct(inside, place.rank, step).items():
            if manner == "reassigned":
                owner, _, last = name.rpartition(".")
                setattr(inside.get_submodule(owner), last, value)
            else:
                inside.get_buffer(name).copy_(value)
        expected.append(_distinct(inside, place.rank if local else 0, step))
        batch = plan.batch(place.rank, step)
        with torch.set_grad_enabled(manner != "eval"), subject_acts():
            out = module(batch.inputs)
            if manner != "eval":
                out.square().mean().backward()
    for step, (ours, wanted) in enumerate(zip(seen, expected, strict=True), 1):
        if manner != "eval":
            wanted["steps"] = wanted["steps"] + 1  # which the model itself has counted by then
        for name, value in wanted.items():
            same(ours[name], value, f"buffer {name} in forward {step}")


def _copies(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.named_buffers()}


def _distinct(module: nn.Module, rank: int, step: int) -> dict[str, torch.Tensor]:
    """Values for each buffer that no other rank has at any step."""
    found = {}
    for name, value in module.named_buffers():
        if value.dtype == torch.bool:
            found[name] = torch.tensor([bool((rank + step) >> bit & 1) for bit in range(value.numel())])
        else:
            base = 2**40 + 1 if value.dtype == torch.int64 else 0
            found[name] = torch.full_like(value, 0) + base + 4 * step + rank
    return found


def _ignored() -> Iterator[Point]:
    for model, name in (("plain", "first"), ("plain", "last"), ("equal-shapes", "2"), ("buffers", "last")):
        core = (3,) if model == "plain" else ()
        label = f"{model}-{name}"
        yield from points.plain(2, 3, label=label, model=model, core=core, more={"ignored": name})


@law("ignored", _ignored)
def ignored(place: Arena, point: Point) -> None:
    """Ignored modules keep their own parameters and gradients on each rank; all others are replicated."""
    plan: Plan = point.values["plan"]
    prefix = point.values["ignored"]
    module = plan.build()
    aside = module.get_submodule(prefix)
    with torch.no_grad():
        for parameter in aside.parameters():
            parameter.add_(place.rank)
    apart = {name: value.detach().clone() for name, value in module.named_parameters()}
    with subject_acts():
        module = place.build(module, ignored_modules=[aside])
        module(plan.batch(place.rank, 1).inputs)
    for name, value in place.values(module).items():
        mine = name.startswith(f"{prefix}.")
        expected = apart[name] if mine else order_matched(plan).start[name]
        same(value, expected, f"{name}, which {'is ignored' if mine else 'is not ignored'}, after a forward")
    place.load(module, order_matched(plan).start)  # from here on all are equal, and so the mean is known
    optimizer = plan.optimize(module)
    found = place.step(plan, module, optimizer, 1)
    own = own_gradients(plan, place.rank)
    together = order_matched(plan).steps[0].gradients
    expected_gradients = {name: (own if name.startswith(f"{prefix}.") else together)[name] for name in found}
    comparison = place.comparison()
    place.compare_gradients(comparison, 1, found, expected_gradients)
    comparison.verdict()


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


class Taker(nn.Module):
    """Notes what it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.taken: tuple[Any, Any] = ((), {})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.taken = (args, kwargs)
        x = kwargs["x"] if "x" in kwargs else args[0]
        while not isinstance(x, torch.Tensor):
            x = x["x"] if isinstance(x, dict) else x[0]
        return self.inner(x)


def _packed(manner: str, x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same input in various packings, beside what is no tensor at all."""
    plain = torch.arange(3)
    packings: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "positional": ((x, plain, None, "text", 7), {}),
        "keyword": ((), {"x": x, "more": plain, "flag": True, "nothing": None}),
        "both": ((x,), {"more": [plain, 1.5]}),
        "nested": (([{"x": Pair(x, (plain, "text"))}, [plain]],), {"deep": {"a": (plain, None, {"b": [plain]})}}),
    }
    return packings[manner]


def _inputs() -> Iterator[Point]:
    for manner in ("positional", "keyword", "both", "nested"):
        core = (3,) if manner in ("keyword", "nested") else ()
        yield from points.plain(1, 2, 3, label=manner, core=core, more={"manner": manner, "device": "cpu"})
        for point in points.plain(1, label=f"gpu-{manner}", core=(), more={"manner": manner, "device": "cuda"}):
            yield Point(point.label, point.size, point.values, not_applicable=_NO_GPU)


@law("inputs", _inputs)
def inputs(place: Arena, point: Point) -> None:
    """Positional and keyword inputs arrive on the module's device, in the structure that they were given in."""
    plan: Plan = point.values["plan"]
    device = torch.device(point.values["device"], 0 if point.values["device"] == "cuda" else None)
    batch = plan.batch(place.rank, 1)
    args, kwargs = _packed(point.values["manner"], batch.inputs)
    with subject_acts():
        # To a subject that takes no device_id, inputs are given where the module is.
        asked = {"device_id": device} if device.type == "cuda" else {}
        module: Any = place.build(Taker(plan.build()).to(device), **asked)
        out = module(*args, **kwargs)
        (out - batch.targets.to(device)).square().mean().backward()
    taken = place.inside(module).taken
    place.check(_alike(taken, (args, kwargs), device), f"took {taken} for {(args, kwargs)} on {device}")
    comparison = place.comparison()
    found = {name.removeprefix("inner."): one for name, one in place.gradients(module).items()}
    place.compare_gradients(comparison, 1, _on_cpu(found), order_matched(plan).steps[0].gradients)
    comparison.verdict()


def _alike(taken: Any, given: Any, device: torch.device) -> bool:
    """The same structure and values, with every tensor on the device."""
    if type(taken) is not type(given):
        return False
    if isinstance(given, torch.Tensor):
        return taken.device == device and torch.equal(taken.cpu(), given)
    if isinstance(given, dict):
        return list(taken) == list(given) and all(_alike(taken[key], given[key], device) for key in given)
    if isinstance(given, (list, tuple)):
        return len(taken) == len(given) and all(_alike(*pair, device) for pair in zip(taken, given, strict=True))
    return bool(taken == given)


def _on_cpu(found: dict[str, Any]) -> dict[str, Any]:
    return {name: None if one is None else one.cpu() for name, one in found.items()}


_DEVICES: dict[str, Any] = {"cpu": torch.device("cpu"), "cpu-index": torch.device("cpu", 0)}
_GPUS: dict[str, Any] = {"gpu-int": 0, "gpu-device": torch.device("cuda", 0)}
_WRONG: dict[str, Any] = {"text": "cpu", "number": 0.0, "list": [0]}


def _devices() -> Iterator[Point]:
    for name, device in _DEVICES.items():
        core = (2,) if name == "cpu" else ()
        yield from points.plain(1, 2, 3, label=name, core=core, more={"device": device})
    for name, device in _GPUS.items():
        for point in points.plain(1, label=name, core=(), more={"device": device}):
            yield Point(point.label, point.size, point.values, not_applicable=_NO_GPU)
    for name, device in _WRONG.items():
        core = (2,) if name == "text" else ()
        yield from points.plain(1, 2, label=f"wrong-{name}", core=core, more={"device": device})


@law("device-id", _devices)
def device_id(place: Arena, point: Point) -> None:
    """An int and a torch.device are taken, that of a CPU too; anything else raises an error that says so."""
    plan: Plan = point.values["plan"]
    given = point.values["device"]
    if point.label.startswith("wrong"):
        place.built(plan, device_id=_DEVICES["cpu"])  # else it refuses the option, and not this value
        error = error_of(lambda: place.build(plan.build(), device_id=given))
        place.check(isinstance(error, (RuntimeError, TypeError, ValueError)), f"device_id={given!r} raised {error!r}")
        place.check("device_id" in str(error), f"the error does not tell of device_id: {error}")
        return
    if not point.label.startswith("gpu"):
        place.conforms(plan, device_id=given)
        return
    batch = plan.batch(place.rank, 1)
    with subject_acts():
        module = place.build(plan.build().to("cuda:0"), device_id=given)
        (module(batch.inputs) - batch.targets.to("cuda:0")).square().mean().backward()
    comparison = place.comparison()
    place.compare_gradients(comparison, 1, _on_cpu(place.gradients(module)), order_matched(plan).steps[0].gradients)
    comparison.verdict()


def _states() -> Iterator[Point]:
    for model in ("buffers", "tied", "plain"):
        core = (2,) if model != "plain" else ()
        yield from points.plain(1, 2, 3, label=model, model=model, core=core)
        if model != "plain":
            yield from points.plain(2, label=f"inside-{model}", model=model, core=())


@law("state-dict", _states)
def state_dict(place: Arena, point: Point) -> None:
    """Keys, order and values are the local module's, before and after a step; it loads both ways, and trains on.

    So are those of the module inside of a wrapper.
    """
    plan: Plan = point.values["plan"]
    module = saved = place.built(plan)
    if point.label.startswith("inside"):
        saved = place.inside(module)
        if saved is module:
            raise NotApplicable("build works in place: there is no module inside")
    _same_state(saved, plan.build(), "before training")
    other = plan.build(seed=99)
    with subject_acts():
        saved.load_state_dict(other.state_dict(), strict=True)
    _same_state(saved, other, "after loading a local module's")
    with subject_acts():
        saved.load_state_dict(plan.build().state_dict(), strict=True)
    reference = order_matched(plan)
    comparison = place.follow(plan, module)
    comparison.verdict()
    local = plan.build(seed=99)
    local.load_state_dict(saved.state_dict(), strict=True)
    for name, value in place.values(local).items():
        same(value, reference.steps[-1].values[name], f"{name}, loaded into a local module")


def _same_state(ours: nn.Module, local: nn.Module, when: str) -> None:
    mine, wanted = ours.state_dict(), local.state_dict()
    if list(mine) != list(wanted):
        raise Deviation(f"{when}: the keys are {list(mine)} instead of {list(wanted)}")
    for name, value in wanted.items():
        same(mine[name], value, f"{name} in the state dict {when}")
