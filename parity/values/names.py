"""The names of modules and parameters: those of the plain model, and what wrappers have made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.values.tree import has_numbers
from torch import nn

#: What wrappers of torch's put into the names of the modules that they wrap.
_OF_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "_fpw_module.")

Rename = Callable[[str], str]


def chunks_of(made: Any) -> list[nn.Module]:
    """Return the modules of what parallelize has returned: a module, a stage of a pipeline, or a list of them."""
    if isinstance(made, nn.Module):
        return [made]
    if isinstance(getattr(made, "submod", None), nn.Module):
        return [made.submod]
    if isinstance(made, (list, tuple)) and made:
        return [module for each in made for module in chunks_of(each)]
    if made is None:
        raise Unusable("parallelize returned None: return the module that this rank trains, even if it is the same.")
    raise Unusable(f"parallelize returned {type(made).__name__}: return a module, a stage, or a list of them.")


def plain_name(name: str, rename: Rename | None) -> str:
    """Return the name that a module or parameter has in the plain model."""
    for wrapper in _OF_WRAPPERS:
        name = name.replace(wrapper, "")
    return rename(name) if rename is not None else name


def unwrapped(modules: Iterable[nn.Module], model: nn.Module) -> Rename | None:
    """Return what takes off the name by which modules have the plain model inside, or None if none has it so."""
    below = (name for each in modules for name, inside in each.named_modules() if inside is model)
    prefixes = [prefix for name in below if (prefix := plain_name(f"{name}.", None)) != "."]
    if not prefixes:
        return None
    return lambda name: next((name.removeprefix(each) for each in prefixes if name.startswith(each)), name)


def candidates(name: str, rename: Rename | None) -> Iterator[str]:
    """Yield the names that it may have in the plain model: DDP's wrapper may stand before it."""
    name = plain_name(name, rename)
    yield name
    while name.startswith("module."):
        name = name.removeprefix("module.")
        yield name


def known_name(name: str, rename: Rename | None, known: Iterable[str]) -> str | None:
    """Return the name in the plain model, or None if it has no such name."""
    return next((each for each in candidates(name, rename) if each in known), None)


def parameters(modules: Iterable[nn.Module]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield each parameter of this rank once, with a key of the number of its module and its name."""
    seen: set[int] = set()
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{number}:{name}", parameter


def buffers(modules: Iterable[nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each buffer with floating numbers, under its name."""
    for module in modules:
        for name, buffer in module.named_buffers():
            if has_numbers(buffer):
                yield name, buffer


def without_number(key: str) -> str:
    """Return the name in the key of a parameter."""
    return key.partition(":")[2]
