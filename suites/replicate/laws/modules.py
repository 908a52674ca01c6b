"""The laws of ``replicate`` about the module: what is equal on all ranks, its inputs and its state dict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from everyrank.suites.compare.reference import SEED
from everyrank.suites.errors import NotApplicable
from everyrank.suites.replicate import points
from everyrank.suites.replicate.arena import Arena
from everyrank.suites.replicate.contract import CONTRACT
from everyrank.suites.replicate.law_player import playing
from everyrank.suites.replicate.planned import Packing, packed
from everyrank.suites.replicate.points import TrainingPoint
from everyrank.suites.replicate.sides import FRESH

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
    buffers = point.compared == "buffers"
    with playing(arena, point.plan, own_values=not buffers, own_buffers=buffers) as player:
        if point.compared == "training":
            player.follow()
        else:
            player.sides.check_start(buffers)


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
    manner = point.manner
    asked = {"asked": {"broadcast_buffers": True}, "refused": {"broadcast_buffers": False}}.get(manner, {})
    with playing(arena, point.plan, options=asked) as player:
        player.sides.watch()
        for _ in range(3):
            player.set_buffers(reassigned=manner == "reassigned")
            if manner == "eval":
                player.evaluate()
            else:
                player.backward()


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
    with playing(arena, point.plan, alone=point.ignored) as player:
        player.forward()
        player.sides.check_ignored()
        player.sides.load(player.sides.run.start)  # from here on all ranks are equal, so the mean is known
        player.backwards()


@dataclass(frozen=True, kw_only=True)
class InputPoint(TrainingPoint):
    """A point that fixes how inputs are packed, and the type of the module's device."""

    packing: Packing
    device: Literal["cpu", "cuda"] = "cpu"


def _inputs() -> Iterator[InputPoint]:
    packing: Packing
    for packing in get_args(Packing):
        core = (3,) if packing in ("keyword", "nested") else ()
        yield from points.each_size(partial(InputPoint, packing=packing), 1, 2, 3, label=packing, core=core)
        on_gpu = partial(InputPoint, packing=packing, device="cuda", not_applicable=_NO_GPU)
        yield from points.each_size(on_gpu, 1, label=f"gpu-{packing}")


@law("inputs", _inputs)
def inputs(arena: Arena, point: InputPoint) -> None:
    """Positional and keyword inputs arrive on the module's device, in the structure in which they were given."""
    device = torch.device("cuda", 0) if point.device == "cuda" else torch.device("cpu")
    # On the CPU no device_id is passed: a subject without that option must keep the law too.
    asked = {"device_id": device} if device.type == "cuda" else {}
    with playing(arena, point.plan, taking=True, options=asked, device=str(device)) as player:
        player.backwards(packing=point.packing)
        taken, given = player.sides.inside.taken, packed(point.packing, point.plan.batch(arena.rank, 1).inputs)
        arena.check(_alike(taken, given, device), f"took {taken} for {given} on {device}")


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
    # If this one raises, the subject refuses the option, not the wrong value.
    valid = _DEVICES["cpu"] if point.kind == "wrong" else point.given
    device = "cuda:0" if point.kind == "gpu" else "cpu"
    with playing(arena, point.plan, options={"device_id": valid}, device=device) as player:
        if point.kind == "wrong":
            player.refuse_device(point.given)
        elif point.kind == "gpu":
            player.backwards()
        else:
            player.follow()


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
    with playing(arena, point.plan) as player:
        sides = player.sides
        if point.inside and sides.inside is sides.ours:
            raise NotApplicable("build works in place: there is no module inside")
        player.save(point.inside)
        player.load_local(FRESH, point.inside)
        player.save(point.inside)
        player.load_local(SEED, point.inside)
        player.follow()
        player.load_into_local(point.inside)
