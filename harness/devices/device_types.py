"""Find a type of devices by its name: CUDA, or one that an installed package names in its entry points."""

from __future__ import annotations

import functools
from dataclasses import replace

from everyrank import installed
from everyrank.devices.cuda import CUDA
from everyrank.devices.protocol import DeviceType, Gpu
from everyrank.errors import MisuseError

#: The group of entry points. A name stands for a ``DeviceType`` of this name, or whatever returns one when called.
GROUP = "everyrank.devices"


def names() -> list[str]:
    """Return the names of all device types that are installed, CUDA's first."""
    return [CUDA.name, *(name for name in installed.names(GROUP) if name != CUDA.name)]


@functools.cache
def find(name: str) -> DeviceType:
    """Return the device type of this name."""
    if name == CUDA.name:
        return CUDA
    kind: DeviceType = installed.load(GROUP, "device type", name, names)()
    if kind.name != name:
        raise MisuseError(f"the device type {name!r} calls itself {kind.name!r}: its entry point needs that name")
    return kind


@functools.cache
def known() -> tuple[DeviceType, ...]:
    """Return all device types that are installed, CUDA first."""
    return tuple(map(find, names()))


def type_of(device: str) -> DeviceType | None:
    """Return the type of a device such as ``cuda:0``; None for the CPU."""
    name = device.partition(":")[0]
    return None if name == "cpu" else find(name)


def found(kind: DeviceType) -> tuple[Gpu, ...]:
    """Return the devices of a type that this process may use, without initialising any."""
    return tuple(replace(gpu, type=kind.name) for gpu in kind.found())


def all_found() -> list[Gpu]:
    """Return the devices of all types that this process may use."""
    return [gpu for kind in known() for gpu in found(kind)]


@functools.cache
def files() -> tuple[str, ...]:
    """Return how the paths of the files begin that drivers open."""
    return tuple(path for kind in known() for path in kind.files)
