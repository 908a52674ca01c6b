"""What a call of ``everyrank.run`` may ask for: each mistake is one sentence that speaks of the call."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from everyrank.call.call import name_of
from everyrank.errors import MisuseError

#: What people write for the number of ranks.
_RANKS = ("n", "nprocs", "num_ranks", "rank", "size", "world", "world_size")


def check(function: Callable[[], Any], ranks: object, seed: object) -> None:
    if not callable(function):
        raise MisuseError(
            f"everyrank.run calls a function on each rank, and {function!r} is none: write "
            "everyrank.run(f, ranks=4), with the function itself and not what it returns"
        )
    name = name_of(function)
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise MisuseError(
            f"ranks must be a whole number of ranks, 1 or more, not {ranks!r}: write everyrank.run({name}, ranks=4)"
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise MisuseError(f"seed must be a whole number, not {seed!r}")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise MisuseError(
            f"everyrank.run calls {name} without arguments ({error}): pass functools.partial({name}, ...) or a lambda"
        ) from None
    except ValueError:  # a function in C may have no signature
        pass


def refuse(misspelt: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first keyword that the call does not take, if there is one."""
    names = list(known)
    for name in misspelt:
        meant = ["ranks"] if name in _RANKS else difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {meant[0]}? It" if meant else "it"
        raise MisuseError(f"everyrank.run takes no {name!r}: {hint} takes {', '.join(names[:-1])} and {names[-1]}")
