"""The laws of ``replicate`` about the module: what is equal on all ranks, its inputs and its state dict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from everyrank.suites.arena.groups import error_of
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import same
from everyrank.suites.compare.reference import Plan, order_matched
from everyrank.suites.errors import NotApplicable
from everyrank.suites.replicate import points
from everyrank.suites.replicate.arena import Arena
from everyrank.suites.replicate.contract import CONTRACT
from everyrank.suites.replicate.model import buffer_values
from everyrank.suites.replicate.points import TrainingPoint
from everyrank.suites.replicate.wrappers import check_state
from torch import nn

law = CONTRACT.law

_NO_GPU = "" if torch.cuda.device_count() else "there is no GPU here"


@dataclass(frozen=True, kw_only=True)
class InitPoint(TrainingPoint):
    """A point that fixes what is compared: parameters or buffers as the module is wrapped, or how it trains."""

    compared: Literal["parameters", "buffers", "training"]


def _inits() -> Iterator[InitPoint]:
    each_size = points.each_size
    built, trained = partial(InitPoint, compared="parameters"), partial(InitPoint, compared="training")
    buffers = partial(InitPoint, compared="buffers")
    yield from each_size(built, 2, 3, label="built", model="buffers")
    yield from each_size(trained, 2, 3, label="trained")
    yield from each_size(built, 2, 3, label="frozen", model="frozen")
    yield from each_size(trained, 2, label="trained-scalars", core=(), model="scalars")
    for model in ("frozen", "gaps"):  # also for a subject that sends its parameters only with the first forward
        yield from each_size(trained, 2, label=f"trained-{model}", core=(2,), model=model)
    for model, core in (("gaps", (2,)), ("large", ())):
        yield from each_size(built, 2, label=f"built-{model}", core=core, model=model, steps=1)
    yield from each_size(buffers, 2, 3, label="buffers", core=(2,), model="buffers")
    yield from each_size(buffers, 2, label="buffers-gaps", core=(), model="gaps")


@law("init.sync", _inits, groups=("TRAINED",))
def init_sync(arena: Arena, point: InitPoint) -> None:
    """Ranks with different seeds have rank 0's parameters once the module is wrapped, and train from them.

    They have rank 0's buffers then too, or keep their own if the subject declares that.
    """
    plan = point.plan
    if point.compared == "buffers":
        _check_initial_buffers(arena, plan)
        return
    module = arena.build_model(plan, seed_by_rank=True)
    if point.compared == "parameters":
        for name, value in arena.values(module).items():
            same(value, order_matched(plan).start[name], f"{name}, as it is wrapped")
        return
    arena.follow(plan, module).verdict()


def _check_initial_buffers(arena: Arena, plan: Plan) -> None:
    module = plan.build()
    for name, value in _distinct(module, arena.rank, 1).items():
        module.get_buffer(name).copy_(value)
    expected = _distinct(module, arena.rank if arena.local_buffers else 0, 1)
    with subject_acts():
        module = arena.build(module)
    for name, value in arena.inside(module).named_buffers():
        same(value, expected[name], f"buffer {name}, as it is wrapped")


_BufferUse = Literal["train", "eval", "reassigned", "asked", "refused"]


@dataclass(frozen=True, kw_only=True)
class BufferPoint(TrainingPoint):
    """A point that fixes the mode of the module, how buffers get new values, or ``broadcast_buffers``."""

    manner: _BufferUse


def _buffers() -> Iterator[BufferPoint]:
    manner: _BufferUse
    for manner in get_args(_BufferUse):
        core = {"asked": (), "refused": (2,), "reassigned": (2,)}.get(manner, (3,))
        make = partial(BufferPoint, manner=manner)
        yield from points.each_size(make, 2, 3, label=manner, model="buffers", core=core)


@law("buffers", _buffers)
def buffers(arena: Arena, point: BufferPoint) -> None:
    """Before each forward, in train and eval, buffers of all dtypes are rank 0's, or stay local if declared so."""
    plan, manner = point.plan, point.manner
    asked = {"asked": {"broadcast_buffers": True}, "refused": {"broadcast_buffers": False}}.get(manner, {})
    local = manner == "refused" or (arena.local_buffers and manner != "asked")
    module = arena.build_model(plan, **asked)
    inside = arena.inside(module)
    seen: list[dict[str, torch.Tensor]] = []
    inside.get_submodule("first").register_forward_pre_hook(lambda *_: seen.append(_copies(inside)))
    module.train(manner != "eval")
    expected = []
    for step in (1, 2, 3):
        for name, value in _distinct(inside, arena.rank, step).items():
            if manner == "reassigned":
                owner, _, last = name.rpartition(".")
                setattr(inside.get_submodule(owner), last, value)
            else:
                inside.get_buffer(name).copy_(value)
        expected.append(_distinct(inside, arena.rank if local else 0, step))
        batch = plan.batch(arena.rank, step)
        with torch.set_grad_enabled(manner != "eval"), subject_acts():
            out = module(batch.inputs)
            if manner != "eval":
                out.square().mean().backward()
    for step, (ours, wanted) in enumerate(zip(seen, expected, strict=True), 1):
        if manner != "eval":
            wanted["steps"] = wanted["steps"] + 1  # the model itself has counted one more by then
        for name, value in wanted.items():
            same(ours[name], value, f"buffer {name} in forward {step}")


def _copies(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.named_buffers()}


def _distinct(module: nn.Module, rank: int, step: int) -> dict[str, torch.Tensor]:
    """Return values for each buffer that no other rank has at any step."""
    return {name: buffer_values(value, step, rank) for name, value in module.named_buffers()}


@dataclass(frozen=True, kw_only=True)
class IgnoredPoint(TrainingPoint):
    """A point that fixes the name of the module that is ignored."""

    ignored: str


def _ignored() -> Iterator[IgnoredPoint]:
    for model, name in (("plain", "first"), ("plain", "last"), ("equal-shapes", "2"), ("buffers", "last")):
        core = (3,) if model == "plain" else ()
        make = partial(IgnoredPoint, ignored=name)
        yield from points.each_size(make, 2, 3, label=f"{model}-{name}", model=model, core=core)
    yield from points.each_size(partial(IgnoredPoint, ignored="last"), 2, label="alike", model="alike", core=(2,))


@law("ignored", _ignored)
def ignored(arena: Arena, point: IgnoredPoint) -> None:
    """Ignored modules keep their own parameters and gradients on each rank; all other modules are replicated."""
    plan, prefix = point.plan, point.ignored
    module = plan.build()
    ignored_module = module.get_submodule(prefix)
    with torch.no_grad():
        for parameter in ignored_module.parameters():
            parameter.add_(arena.rank)
    unreplicated = {name: value.detach().clone() for name, value in module.named_parameters()}
    with subject_acts():
        module = arena.build(module, ignored_modules=[ignored_module])
        module(plan.batch(arena.rank, 1).inputs)
    for name, value in arena.values(module).items():
        mine = name.startswith(f"{prefix}.")
        expected = unreplicated[name] if mine else order_matched(plan).start[name]
        same(value, expected, f"{name}, which {'is ignored' if mine else 'is not ignored'}, after a forward")
    arena.load(module, order_matched(plan).start)  # from here on all ranks are equal, so the mean is known
    optimizer = plan.optimize(module)
    found = arena.step(plan, module, optimizer, 1)
    arena.check_gradients(plan, found, own=lambda name: name.startswith(f"{prefix}."))


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


class Taker(nn.Module):
    """A wrapper that notes the arguments of its forward."""

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


_Packing = Literal["positional", "keyword", "both", "nested"]


def _packed(packing: _Packing, x: torch.Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the same input in this packing, together with values that are not tensors."""
    plain = torch.arange(3)
    packings: dict[_Packing, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "positional": ((x, plain, None, "text", 7), {}),
        "keyword": ((), {"x": x, "more": plain, "flag": True, "nothing": None}),
        "both": ((x,), {"more": [plain, 1.5]}),
        "nested": (([{"x": Pair(x, (plain, "text"))}, [plain]],), {"deep": {"a": (plain, None, {"b": [plain]})}}),
    }
    return packings[packing]


@dataclass(frozen=True, kw_only=True)
class InputPoint(TrainingPoint):
    """A point that fixes how inputs are packed, and the type of the module's device."""

    packing: _Packing
    device: Literal["cpu", "cuda"] = "cpu"


def _inputs() -> Iterator[InputPoint]:
    packing: _Packing
    for packing in get_args(_Packing):
        core = (3,) if packing in ("keyword", "nested") else ()
        yield from points.each_size(partial(InputPoint, packing=packing), 1, 2, 3, label=packing, core=core)
        on_gpu = partial(InputPoint, packing=packing, device="cuda", not_applicable=_NO_GPU)
        yield from points.each_size(on_gpu, 1, label=f"gpu-{packing}")


@law("inputs", _inputs)
def inputs(arena: Arena, point: InputPoint) -> None:
    """Positional and keyword inputs arrive on the module's device, in the structure in which they were given."""
    plan = point.plan
    device = torch.device("cuda", 0) if point.device == "cuda" else torch.device("cpu")
    batch = plan.batch(arena.rank, 1)
    args, kwargs = _packed(point.packing, batch.inputs)
    with subject_acts():
        # On the CPU no device_id is passed: a subject without that option must keep the law too.
        asked = {"device_id": device} if device.type == "cuda" else {}
        module: Any = arena.build(Taker(plan.build()).to(device), **asked)
        out = module(*args, **kwargs)
        (out - batch.targets.to(device)).square().mean().backward()
    taken = arena.inside(module).taken
    arena.check(_alike(taken, (args, kwargs), device), f"took {taken} for {(args, kwargs)} on {device}")
    found = {name.removeprefix("inner."): gradient for name, gradient in arena.gradients(module).items()}
    arena.check_gradients(plan, _on_cpu(found))


def _alike(taken: Any, given: Any, device: torch.device) -> bool:
    """Return whether both have the same structure and values, with every taken tensor on the device."""
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
    return {name: None if gradient is None else gradient.cpu() for name, gradient in found.items()}


_DEVICES: dict[str, Any] = {"cpu": torch.device("cpu"), "cpu-index": torch.device("cpu", 0)}
_GPUS: dict[str, Any] = {"gpu-int": 0, "gpu-device": torch.device("cuda", 0)}
_WRONG: dict[str, Any] = {"text": "cpu", "number": 0.0, "list": [0]}


@dataclass(frozen=True, kw_only=True)
class DevicePoint(TrainingPoint):
    """A point with a value of ``device_id``."""

    given: object
    kind: Literal["cpu", "gpu", "wrong"]


def _devices() -> Iterator[DevicePoint]:
    for name, device in _DEVICES.items():
        core = (2,) if name == "cpu" else ()
        yield from points.each_size(partial(DevicePoint, given=device, kind="cpu"), 1, 2, 3, label=name, core=core)
    for name, device in _GPUS.items():
        make = partial(DevicePoint, given=device, kind="gpu", not_applicable=_NO_GPU)
        yield from points.each_size(make, 1, label=name)
    for name, device in _WRONG.items():
        core = (2,) if name == "text" else ()
        make = partial(DevicePoint, given=device, kind="wrong")
        yield from points.each_size(make, 1, 2, label=f"wrong-{name}", core=core)


@law("device-id", _devices)
def device_id(arena: Arena, point: DevicePoint) -> None:
    """``device_id`` may be an int or a torch.device, also a CPU's; else an error is raised that names device_id."""
    plan, given = point.plan, point.given
    if point.kind == "wrong":
        # If this raises, the subject refuses the option, not the wrong value.
        arena.build_model(plan, device_id=_DEVICES["cpu"])
        error = error_of(lambda: arena.build(plan.build(), device_id=given))
        arena.check(isinstance(error, (RuntimeError, TypeError, ValueError)), f"device_id={given!r} raised {error!r}")
        arena.check("device_id" in str(error), f"the error does not name device_id: {error}")
        return
    if point.kind == "cpu":
        arena.check_training(plan, device_id=given)
        return
    batch = plan.batch(arena.rank, 1)
    with subject_acts():
        module = arena.build(plan.build().to("cuda:0"), device_id=given)
        (module(batch.inputs) - batch.targets.to("cuda:0")).square().mean().backward()
    arena.check_gradients(plan, _on_cpu(arena.gradients(module)))


@dataclass(frozen=True, kw_only=True)
class StatePoint(TrainingPoint):
    """A point that fixes whose state dict is saved and loaded: the built module's, or that of the module inside."""

    inside: bool


def _states() -> Iterator[StatePoint]:
    built, inside = partial(StatePoint, inside=False), partial(StatePoint, inside=True)
    for model in ("buffers", "tied", "plain"):
        core = (2,) if model != "plain" else ()
        yield from points.each_size(built, 1, 2, 3, label=model, model=model, core=core)
        if model != "plain":
            yield from points.each_size(inside, 2, label=f"inside-{model}", model=model, core=())


@law("state-dict", _states)
def state_dict(arena: Arena, point: StatePoint) -> None:
    """A state dict has the local module's keys, order and values, before and after a step; it loads both ways.

    This is also asked of a wrapper: its keys have no prefix, such as DDP's `module.`. The module trains on after
    loading. All this also holds for the module inside of a wrapper.
    """
    plan = point.plan
    module = saved = arena.build_model(plan)
    if point.inside:
        saved = arena.inside(module)
        if saved is module:
            raise NotApplicable("build works in place: there is no module inside")
    check_state(saved.state_dict(), plan.build(), " before training")
    other = plan.build(seed=99)
    with subject_acts():
        saved.load_state_dict(other.state_dict(), strict=True)
    check_state(saved.state_dict(), other, " after loading a local module's")
    with subject_acts():
        saved.load_state_dict(plan.build().state_dict(), strict=True)
    reference = order_matched(plan)
    comparison = arena.follow(plan, module)
    comparison.verdict()
    local = plan.build(seed=99)
    with subject_acts("a local module that loads the state after training"):
        local.load_state_dict(saved.state_dict(), strict=True)
    for name, value in arena.values(local).items():
        same(value, reference.steps[-1].values[name], f"{name}, loaded into a local module")
