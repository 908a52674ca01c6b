"""The modules of a script that are called as a whole, and the names that their tensors have at every size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

#: Attributes by which a wrapper keeps the user's module, and parts of names that others leave.
_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module")
_LEFT = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_WRAPPERS = frozenset(
    {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule", "_FabricModule"}
)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the user's own module."""
    while type(module).__name__ in _WRAPPERS:
        inner = (module._modules.get(name) for name in _WRAPPED)
        found = next((each for each in inner if each is not None), None)
        if found is None:
            break
        module = found
    return module


def kinds(module: nn.Module) -> tuple[type[nn.Module], str]:
    """Return the class of the user's own module, and the name of its wrapper; FSDP2 has made a class of both."""
    kind = type(unwrapped(module))
    bases = [each.__name__ for each in kind.__bases__]
    if len(bases) == 2 and bases[0] == "FSDPModule":
        return kind.__bases__[1], bases[0]
    return kind, type(module).__name__


def dtype_of_shards(module: nn.Module) -> torch.dtype | None:
    """Return the dtype in which FSDP computes, of either kind; None if it is that of the parameters."""
    for each in module.modules():
        state = getattr(each, "_get_fsdp_state", lambda: None)()
        policy = getattr(state, "_mp_policy", None) or getattr(each, "mixed_precision", None)
        if isinstance(dtype := getattr(policy, "param_dtype", None), torch.dtype):
            return dtype
    return None


class Roots:
    """The modules that were called from outside of any other, in order."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []

    def add(self, module: nn.Module) -> bool:
        """Return whether a module is new here, and has what can be trained."""
        own = unwrapped(module)
        if any(own is each for each in self.modules) or next(own.parameters(), None) is None:
            return False
        for known in self.modules:
            if any(own is each for each in known.modules()):
                return False  # a part that is called alone, too
        self.modules.append(own)
        return True

    def _named(self, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
        for number, root in enumerate(self.modules):
            first = f"{type(root).__name__}{number}." if number else ""
            for name, tensor in getattr(root, f"named_{kind}")():
                for part in _LEFT:
                    name = name.replace(part, "")
                yield first + name, tensor

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return parameters by name; those of the first module have the names that it gives them."""
        return dict(self._named("parameters"))

    def named(self, parameters: Iterable[Any]) -> dict[str, torch.Tensor]:
        """Return these parameters by name; those of no module here by their number."""
        names = {id(tensor): name for name, tensor in self.parameters().items()}
        return {
            names.get(id(each), f"parameter {number}"): each
            for number, each in enumerate(parameters)
            if isinstance(each, torch.Tensor)
        }

    def buffers(self) -> dict[str, torch.Tensor]:
        return dict(self._named("buffers"))

    def batch_norms(self) -> list[str]:
        """Return the names of batch norms in training, which normalize by the rows that they get."""
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        return [
            name
            for root in self.modules
            for name, module in root.named_modules()
            if isinstance(module, norms) and module.training
        ]
