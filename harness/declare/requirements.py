"""What a test needs of the machine, and the reason to skip it if the machine lacks that."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from difflib import get_close_matches

from everyrank.declare.declaration import Declaration, backends
from everyrank.devices import device_types
from everyrank.devices.cuda import CUDA
from everyrank.devices.protocol import DeviceType, Gpu
from everyrank.errors import MisuseError
from everyrank.resources.gpus.needs import Needs


def needs(declared: Declaration, size: int) -> Needs:
    """Return the needs of a world of this size, as its mark states or implies them."""
    kind = declared.device_type
    one_per_rank = kind.backend in backends(declared.backend)
    count, share = declared.gpus, 1.0
    if isinstance(count, float):
        count, share = 1, count
    least = most = count or 0
    if count is None and declared.p2p:
        least = most = max(2, size)
    elif count is None and one_per_rank:
        least = most = size
    elif count is None and (declared.names_type or declared.gpu_memory or declared.capability):
        least, most = 1, size
    elif count is None and declared.gpus_if_any:
        most = size
    return Needs(least, most, share, declared.gpu_memory, declared.capability, declared.p2p, one_per_rank, kind.name)


def check(declared: Declaration, size: int) -> None:
    """Raise MisuseError for needs that no machine can meet."""
    gpus = needs(declared, size)
    if gpus.one_per_rank and (gpus.most < size or gpus.share < 1):
        kind = declared.device_type
        gloo = ", or backend='gloo', which takes CUDA tensors too" if kind is CUDA else ""
        raise MisuseError(
            f"backend={declared.backend!r} needs {kind.titled} for each of the {size} ranks, and "
            f"gpus={declared.gpus!r} has fewer: write gpus={size}{gloo}"
        )


def missing_gpus(needs: Needs, gpus: Sequence[Gpu]) -> str:
    """Return why these GPUs do not meet the needs, such as ``needs 4 GPUs, found 0``; "" if they do."""
    count = f"needs {needs.count}"
    if len(gpus) < needs.least:
        return f"{count}, found {len(gpus)}{'' if gpus else _describe_hidden(device_types.find(needs.type))}"
    suitable = len(needs.suitable(gpus))
    if suitable < needs.least:
        return f"{count} {needs.kind}, found {suitable} among {len(gpus)}"
    if next(needs.choices(gpus), None) is None:
        kind = f" {needs.kind}" if needs.kind else ""
        return f"{count}{kind} that reach each other (P2P), found no such set among {suitable}"
    return ""


def _describe_hidden(kind: DeviceType) -> str:
    """Explain why no device of this type can be used; "" if the machine has none."""
    count = kind.on_this_machine()
    if not count:
        return ""
    if kind.variable in os.environ:
        return f" ({kind.variable}={os.environ[kind.variable]!r} hides {count})"
    return f" (this torch is built without {kind.name.upper()}; the machine has {count})"


def one_for_each_rank(needs: Needs, size: int) -> Needs | None:
    """Return the needs of a world on GPUs of several hosts, where each rank gets one; None if it needs others."""
    if needs.most != size or needs.share < 1 or needs.p2p:
        return None
    return dataclasses.replace(needs, least=size)


def missing_backend(backend: str) -> str:
    """Return why a backend cannot be used, or "". A backend that torch does not know is a misuse, not a skip."""
    import torch.distributed as dist

    if not dist.is_available():
        return "torch was built without distributed"
    for name in backends(backend):
        if name not in dist.Backend.backend_list:
            known = [each for each in dist.Backend.backend_list if each != dist.Backend.UNDEFINED]
            close = get_close_matches(name, known, 1)
            advice = f"did you mean {close[0]!r}?" if close else "register your own when the test file is imported"
            raise MisuseError(
                f"the backend {name!r} is not known to this torch, which knows {', '.join(known)}: {advice}"
            )
        if not dist.is_backend_available(name):
            return f"needs the backend {name}, which this torch does not have"
    return ""
