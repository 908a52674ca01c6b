"""A call: the function that runs on each rank, and the world that it asks for."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing import spawn
from typing import Any

from everyrank.errors import MisuseError


@dataclass(frozen=True)
class RunCall:
    """One call of ``everyrank.run``, as its ranks see it."""

    function: Callable[[], Any]
    world: Mapping[str, Any]
    """The arguments of the mark ``world``."""
    group: bool
    """Whether the default process group is up when the function is called."""
    line: str
    """The call as a person would type it."""

    def packed(self) -> str:
        """Return this call as text, for ranks that are no forks of this process."""
        return pickle.dumps(replace(self, function=Packed.from_function(self.function))).hex()


def unpacked(text: str) -> RunCall:
    """Return the call that another process has packed."""
    call: RunCall = pickle.loads(bytes.fromhex(text))
    return call


@dataclass(frozen=True)
class Packed:
    """A function on its way to a process that is no fork of this one, in the way of multiprocessing."""

    name: str
    main: Mapping[str, Any]
    """What that process needs to import this one's ``__main__``."""
    data: bytes
    problem: str = ""
    """Why the function cannot be pickled. Forks do not need that."""

    @classmethod
    def from_function(cls, function: Callable[[], Any]) -> Packed:
        try:
            main = spawn.get_preparation_data("everyrank")
            del main["authkey"]  # it is never pickled
            return cls(name_of(function), main, pickle.dumps(function))
        except Exception as error:
            return cls(name_of(function), {}, b"", f"{type(error).__name__}: {error}")

    def __call__(self) -> Any:
        __tracebackhide__ = True
        if self.problem:
            raise MisuseError(
                f"{self.name} cannot be pickled ({self.problem}), and these ranks are no forks of the process that "
                "called everyrank.run(): define it at the top level of a module"
            )
        spawn.prepare(dict(self.main))  # from now on, __main__ is found as __mp_main__
        return pickle.loads(self.data)()


def name_of(function: Callable[[], Any]) -> str:
    """Return how a person calls this function."""
    function = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(function, "__name__", getattr(function, "name", type(function).__name__)))


def location_of(function: Callable[[], Any]) -> tuple[str, int]:
    """Return the file and the line of a function; ("", 0) if it is not written in Python."""
    function = inspect.unwrap(getattr(function, "func", function))
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
