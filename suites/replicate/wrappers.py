"""Find the module inside of a subject's wrapper: a wrapper renames parameters, but laws use the local names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

import torch
from everyrank.suites.compare.comparison import same
from everyrank.suites.errors import BrokenAdapter, Deviation
from torch import nn

#: What is said of a state dict all of whose keys begin with the wrapper's name of the module inside, as DDP's do.
PREFIXED = "have one prefix"

#: How many names an error message lists.
_NAMES = 4


class Wrappers:
    """The wrappers of one case, and the module inside of each. A wrapper is dropped once nothing else holds it."""

    def __init__(self) -> None:
        self._inside: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()

    def add(self, built: nn.Module, given: nn.Module, names: list[str], subject: str) -> None:
        """Note the result of a build on a module whose parameters and buffers had these names."""
        found = _inside(built, given, names)
        if found is None:
            raise BrokenAdapter(
                f"build of {subject} returned a {type(built).__name__} in which the kit does not find the module "
                f"that it was given: it has {_listed(names_of(built))}, not {_listed(names)}; let build return that "
                "module, a wrapper that has it as a submodule, or one with a copy of it"
            )
        if found is not built:
            self._inside[built] = found

    def inside(self, module: nn.Module) -> nn.Module:
        """Return the module with the local names: the one that was given to the subject, or its copy."""
        while module in self._inside:
            module = self._inside[module]
        return module

    def parameters(self, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield what `named_parameters` yields, but by the local names, as if no submodule had a wrapper."""
        seen: set[nn.Parameter] = set()
        for prefix, part in self._parts("", module, set()):
            for name, parameter in part.named_parameters(recurse=False):
                if parameter not in seen:
                    seen.add(parameter)
                    yield f"{prefix}{name}", parameter

    def _parts(self, prefix: str, module: nn.Module, seen: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
        inside = self.inside(module)
        if inside in seen:
            return
        seen.add(inside)
        yield prefix, inside
        for name, child in inside.named_children():
            yield from self._parts(f"{prefix}{name}.", child, seen)


def names_of(module: nn.Module) -> list[str]:
    """Return the names of all parameters and buffers; if one has several names, all of them."""
    parameters = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    return [*parameters, *(name for name, _ in module.named_buffers(remove_duplicate=False))]


def check_state(state: Mapping[str, torch.Tensor], local: nn.Module, when: str = "") -> None:
    """Check that a state dict has the keys of the local module, in their order, and its values."""
    wanted = local.state_dict()
    _check_keys(list(state), list(wanted), when)
    for name, value in wanted.items():
        same(state[name], value, f"{name} in the state dict{when}")


def _check_keys(found: list[str], local: list[str], when: str) -> None:
    if found == local:
        return
    prefix = next(iter(found), "").removesuffix(next(iter(local), ""))
    reason = f": its keys {PREFIXED}, and those of a wrapper must be those of the module that was given to build"
    prefixed = bool(prefix) and found == [f"{prefix}{key}" for key in local]
    raise Deviation(f"in the state dict{when} the keys are {found} instead of {local}{reason if prefixed else ''}")


def _inside(built: nn.Module, given: nn.Module, names: list[str]) -> nn.Module | None:
    """Return the given module if it is inside; else one with the same parameters; else one with the same names."""
    parts = list(built.modules())
    if any(part is given for part in parts):
        return given
    if names_of(given) == names and set(built.parameters()) == set(given.parameters()):
        return given  # the wrapper keeps it in an attribute that torch does not search for submodules
    return next((part for part in parts if names_of(part) == names), None)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return (", ".join(names[:_NAMES]) + more) or "neither parameters nor buffers"
