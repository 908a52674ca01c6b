"""What a function returned, on its way from a rank to the caller."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from everyrank.call.call import name_of
from everyrank.errors import MisuseError


def pack(function: Callable[[], Any], value: Any) -> bytes:
    """Return what a function returned as bytes that ``unpack`` can read."""
    kind = type(value).__name__
    try:
        return pickle.dumps((kind, pickle.dumps(value)))
    except Exception as error:
        raise _refusal(function, kind, "pickled", error) from None


def unpack(function: Callable[[], Any], packed: bytes) -> Any:
    kind, data = pickle.loads(packed)
    try:
        return pickle.loads(data)
    except (Exception, SystemExit) as error:
        raise _refusal(function, kind, "unpickled", error) from None


def _refusal(function: Callable[[], Any], kind: str, action: str, error: BaseException) -> MisuseError:
    return MisuseError(
        f"{name_of(function)} returned a value of {kind} that cannot be {action} "
        f"({type(error).__name__}: {error}): return plain data or tensors"
    )
