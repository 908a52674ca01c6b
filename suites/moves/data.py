"""Write a script, made of frozen dataclasses, as JSON for other ranks and as Python for a test; read the JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

#: The key under which JSON holds the name of a dataclass.
_KIND = "kind"


def encode(value: Any) -> str:
    """Write a script, or a part of one, as JSON on one line."""
    return json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        given = {name: _plain(part) for name, part in _given(value).items()}
        return {_KIND: type(value).__name__, **given}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value


def decode(text: str, kinds: Iterable[type]) -> Any:
    """Read what `encode` has written; ``kinds`` are the dataclasses that it may contain."""
    return _made(json.loads(text), {kind.__name__: kind for kind in kinds})


def _made(value: Any, kinds: Mapping[str, type]) -> Any:
    if isinstance(value, dict):
        given = {name: _made(part, kinds) for name, part in value.items() if name != _KIND}
        return kinds[value[_KIND]](**given)
    if isinstance(value, list):
        return tuple(_made(part, kinds) for part in value)
    return value


def code(value: Any, indent: str = "") -> str:
    """Write it as the Python expression that makes it, without arguments that have their default."""
    if isinstance(value, tuple):
        parts = [code(part, f"{indent}    ") for part in value]
        if not any(is_dataclass(part) for part in value):
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        lines = "".join(f"{indent}    {part},\n" for part in parts)
        return f"(\n{lines}{indent})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'  # needs no import in the test
    if not is_dataclass(value):
        return repr(value)
    given = _given(value)
    if not any(isinstance(part, tuple) and any(map(is_dataclass, part)) for part in given.values()):
        return f"{type(value).__name__}({', '.join(f'{name}={code(part)}' for name, part in given.items())})"
    lines = "".join(f"{indent}    {name}={code(part, f'{indent}    ')},\n" for name, part in given.items())
    return f"{type(value).__name__}(\n{lines}{indent})"


def names_in(value: Any) -> set[str]:
    """Return the names of the dataclasses in a script, which a test must import."""
    if isinstance(value, tuple):
        return set().union(*map(names_in, value))
    if is_dataclass(value):
        return {type(value).__name__}.union(*map(names_in, _given(value).values()))
    return set()


def _given(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    found = {}
    for field in fields(value):
        part = getattr(value, field.name)
        if field.default is MISSING or part != field.default:
            found[field.name] = part
    return found
