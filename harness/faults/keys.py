"""Sees the keys that a process sets in torch's stores, by their methods; torch's groups meet by keys of their own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Store

#: The methods that set a key, each with what a caller would see whose key no other rank sets. If it is dropped, the
#: caller sees that.
_SETS: dict[str, Callable[..., Any]] = {
    "set": lambda real, store, key, value: None,
    "append": lambda real, store, key, value: None,
    "add": lambda real, store, key, amount: real["add"](store, key, 0) + amount,
    "compare_set": lambda real, store, key, expected_value, desired_value: desired_value.encode(),
}
#: torch's module that makes groups.
_GROUPS = "torch.distributed.distributed_c10d"

#: Makes a call that sets a key: its name, the call, and what it returns if the key is dropped.
See = Callable[[str, Callable[[], Any], Callable[[], Any]], Any]


class Keys:
    """Calls ``see`` for each key that this process sets in a store, until ``stop``."""

    def __init__(self, see: See) -> None:
        self._see = see
        self._replaced = {method: getattr(Store, method) for method in _SETS}
        for method, real in self._replaced.items():
            setattr(Store, method, self._seen(method, real))

    def stop(self) -> None:
        for method, real in self._replaced.items():
            setattr(Store, method, real)

    def _seen(self, method: str, real: Any) -> Any:
        @functools.wraps(real)
        def called(store: Any, *arguments: Any, **options: Any) -> Any:
            def run() -> Any:
                return real(store, *arguments, **options)

            if sys._getframe(1).f_globals.get("__name__") == _GROUPS:
                return run()
            return self._see(method, run, lambda: _SETS[method](self._replaced, store, *arguments, **options))

        return called
