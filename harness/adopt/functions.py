"""Recognises test functions that call ``torch.multiprocessing.spawn``, and runs what they spawn on everyrank's ranks.

Rank 0 runs the test. When it spawns, the other ranks, which have waited for that, call the spawned function with
their numbers, and rank 0 does so too; then rank 0 goes on.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import inspect
import json
import os
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from everyrank.adopt.recognise import FUNCTION, Adopted, Finding, NotAdopted
from everyrank.rank.groups import destroy_after_test
from everyrank.rank.seeds import seed_generators
from everyrank.rank.torch_style import as_changed, changes, environment

if TYPE_CHECKING:
    import pytest
    from everyrank.rank.context import RankContext

#: The seed that torch's generator has in every new process.
_SEED = 67280421310721
#: What rank 0 sends at the end of the test.
_END = ""


# --- before the run -----------------------------------------------------------------------------------


def recognise_function(item: pytest.Item) -> Finding | None:
    """Decide about a test function that calls mp.spawn itself; None for any other."""
    function: Any = getattr(item, "function", None)
    original: Any = getattr(sys.modules.get("torch.multiprocessing"), "spawn", None)
    if original is None or not {"spawn"} & set(getattr(getattr(function, "__code__", None), "co_names", ())):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    spawns = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is(node.func, function, original)]
    if not spawns:
        return None
    names = {**function.__globals__, **_constants(tree), **getattr(getattr(item, "callspec", None), "params", {})}
    sizes = {_processes(call, names) for call in spawns}
    size = sizes.pop() if len(sizes) == 1 else 0
    if not size:
        return NotAdopted("it calls mp.spawn, and its nprocs is no number that is known before the run")
    return Adopted(FUNCTION, size, None)


def _is(node: ast.expr, function: Any, expected: object) -> bool:
    """Return whether an expression such as ``mp.spawn`` names this object where the function stands."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    value = function.__globals__.get(node.id) if isinstance(node, ast.Name) else None
    for name in names:
        value = getattr(value, name, None)
    return value is expected


def _constants(tree: ast.AST) -> dict[str, object]:
    """Return the names to which the function assigns one constant, and nothing else."""
    values: dict[str, list[object]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            values.setdefault(node.id, [])
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value.value)
    return {name: constants[0] if len(constants) == 1 else None for name, constants in values.items()}


def _processes(call: ast.Call, names: Mapping[str, object]) -> int:
    argument: ast.expr | None = next((word.value for word in call.keywords if word.arg == "nprocs"), None)
    if argument is None and len(call.args) > 2:
        argument = call.args[2]
    value = names.get(argument.id) if isinstance(argument, ast.Name) else getattr(argument, "value", 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


# --- on a rank ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def functions(rank: RankContext, item: Any) -> Iterator[None]:
    """In this context, let the ranks of this world be the processes that the test spawns."""
    with environment(rank.variables_before):
        spawning = _Spawning(rank, dict(os.environ))
        if rank.world.rank:
            item.obj = lambda *_, **__: spawning.serve()
            yield
            return
        module = sys.modules["torch.multiprocessing"]
        original: Any = vars(module)["spawn"]
        spawn = functools.wraps(original)(functools.partial(spawning.spawn, original))
        with contextlib.ExitStack() as stack:
            for names in (vars(module), item.function.__globals__):
                for name in [name for name, value in names.items() if value is original]:
                    stack.callback(names.__setitem__, name, original)
                    names[name] = spawn
            try:
                yield
            finally:
                spawning.end()


class _Spawning:
    """What one rank does for the calls of mp.spawn in one test."""

    def __init__(self, rank: RankContext, before: dict[str, str]) -> None:
        self._rank = rank
        self._before = before
        self._calls = 0

    def spawn(
        self,
        original: Callable[..., Any],
        fn: Callable[..., object],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        **more: Any,
    ) -> Any:
        """Run the function on all ranks; or start processes, if ranks cannot do what the test asks for."""
        __tracebackhide__ = True
        text = _text(fn, args, changes(self._before))
        if text is None or not join or nprocs != self._rank.world.size:
            return original(fn, args, nprocs, join, **more)
        self._rank.gather(f"spawn {self._calls}", text)
        self._run(text)
        return None

    def serve(self) -> None:
        """Run what rank 0 spawns, until it has ended its test."""
        __tracebackhide__ = True
        while (texts := self._rank.gather(f"spawn {self._calls}", "")) and texts[0] != _END:
            self._run(texts[0])

    def end(self) -> None:
        """Let the other ranks end their tests."""
        self._rank.gather(f"spawn {self._calls}", _END)

    def _run(self, text: str) -> None:
        __tracebackhide__ = True
        encoded, changed = json.loads(text)
        fn, args = pickle.loads(base64.b64decode(encoded))
        with environment(as_changed(self._before, changed)):
            seed_generators(_SEED)
            try:
                fn(self._rank.world.rank, *args)
            except SystemExit as end:
                if end.code not in (0, None):
                    raise
            destroy_after_test(self._rank)  # a process that was spawned ends here
        self._rank.gather(f"the end of spawn {self._calls}", "")
        self._calls += 1


def _text(fn: object, args: object, changed: dict[str, str | None]) -> str | None:
    """Return the call as a text; None if it holds what only a child process can inherit, such as a queue."""
    try:
        return json.dumps([base64.b64encode(pickle.dumps((fn, args))).decode(), changed])
    except Exception:
        return None
