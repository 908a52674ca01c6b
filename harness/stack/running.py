"""Find the call that a frame of a stack is in: by the position of its instruction, or as the only call of a line."""

from __future__ import annotations

import ast
import itertools
import linecache
import textwrap
from types import FrameType


def running_call(frame: FrameType) -> ast.Call | None:
    """Return the call that a frame is in now; None if that is not certain."""
    expression = running_expression(frame)
    return expression if isinstance(expression, ast.Call) else None


def running_expression(frame: FrameType) -> ast.expr | None:
    """Return the expression that a frame is in now; None if that is not certain.

    Code knows the columns of its instructions from Python 3.11 on. Before that, a line must have one call at most.
    """
    code = frame.f_code
    if not hasattr(code, "co_positions"):
        return only_call(code.co_filename, frame.f_lineno)
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), None)
    if position is None or None in position:
        return None
    first, last, start, end = (int(number or 0) for number in position)
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return None
    before = lines[0][:start].decode().rstrip()
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    text = b"".join(lines).decode()
    # From Python 3.12 on, the instruction of a method's call that spans lines begins with the method's name.
    return _expression(f"({'_.' if before.endswith('.') else ''}{text})") or _entered(text)


def only_call(file: str, line: int) -> ast.Call | None:
    """Return the call of a line that is a simple statement and has no other call."""
    try:
        statement = ast.parse(textwrap.dedent(linecache.getline(file, line))).body
    except SyntaxError:
        return None
    if len(statement) != 1 or not isinstance(statement[0], (ast.Expr, ast.Assign, ast.Return)):
        return None
    inner = list(ast.walk(statement[0]))
    calls = [node for node in inner if isinstance(node, ast.Call)]
    nested = any(isinstance(node, (ast.comprehension, ast.Lambda, ast.Await)) for node in inner)
    return calls[0] if len(calls) == 1 and not nested else None


def iterated(file: str, line: int) -> str:
    """Return the name of what a line takes elements from: ``loader`` of ``for x, y in enumerate(loader):``."""
    text = textwrap.dedent(linecache.getline(file, line))
    try:
        statement = ast.parse(f"{text}    pass" if text.startswith("for ") else text).body[0]
    except (SyntaxError, IndexError):
        return ""
    source: ast.expr | None = None
    if isinstance(statement, ast.For):
        source = statement.iter
    elif isinstance(call := only_call(file, line), ast.Call) and called_name(call) == "next":
        source = call
    while isinstance(source, ast.Call) and source.args:
        source = source.args[0]
    return ast.unparse(source) if isinstance(source, (ast.Name, ast.Attribute)) else ""


def called_name(call: ast.Call | None) -> str:
    """Return the last name of what a call calls: ``wait`` of ``work.wait()``."""
    function = call.func if call is not None else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def is_method_without_arguments(call: ast.Call | None, name: str) -> bool:
    """Return whether a call is ``(something).name()``."""
    return (
        call is not None
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == name
        and not (call.args or call.keywords)
    )


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _entered(text: str) -> ast.expr | None:
    """Return the expression of a with statement that has only one: before Python 3.12, its call has no position."""
    try:
        statement = ast.parse(text).body[0]
    except (SyntaxError, IndexError):
        return None
    return statement.items[0].context_expr if isinstance(statement, ast.With) and len(statement.items) == 1 else None
