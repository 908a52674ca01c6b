"""Describe what a thread waits for: the key of a store, a lock, a message, or what other threads wait in.

This is for texts alone: whether a wait is in vain is decided elsewhere.
"""

from __future__ import annotations

import ast
import sys
import threading
from types import FrameType
from typing import Any

from everyrank.rank.main_wait import Groups, stack_of
from everyrank.stack.frames import is_users, standing, waits
from everyrank.stack.running import called_name, running_expression

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
#: The function, and its module, by which torch's RPC agents wait for each other.
_GATHERS = ("_all_gather", "torch.distributed.rpc.api")
_OF_STORE = ("get", "wait", "multi_get")
#: A text names this many keys.
_MOST = 3


def awaited(frame: FrameType) -> str:
    """Return what a frame waits for, with the call: ``get for the key 'ready' of a store``; empty if unknown."""
    if gathering := _gathering(frame):
        return gathering
    running = running_expression(frame)
    users = is_users(frame.f_code.co_filename)
    if isinstance(running, ast.Call) and isinstance(running.func, ast.Attribute):
        name, owner = running.func.attr, running.func.value
        if name in _OF_STORE and _is_store(owner, frame):
            calls = name if users else standing(stack_of(frame)).partition(" at ")[0]
            return f"{calls} for {_keys(running, frame)} of a store"
        running = owner if name == "acquire" else running
    # A lock that a function of a library waits for is its own affair.
    return "acquire of a lock" if users and running is not None and isinstance(_value(running, frame), _LOCKS) else ""


def _gathering(frame: FrameType) -> str:
    """Return which worker torch's own gathering of names waits for: each call of init_rpc() ends with one.

    The leader waits until all have come, and answers each follower, which waits for that.
    """
    inner: FrameType | None = frame
    while inner is not None and (inner.f_code.co_name, inner.f_globals.get("__name__")) != _GATHERS:
        inner = inner.f_back
    if inner is None or "is_leader" not in inner.f_locals:
        return ""
    local = inner.f_locals
    call = standing(stack_of(frame)).partition(" at ")[0]
    if not local["is_leader"]:
        leader = local["leader_name"]
        step = (
            f"the answer of the leader {leader}" if "states" in local else f"the leader {leader} to note that it came"
        )
        return f"{call} (for {step})"
    answers = local.get("worker_name_to_response_future_dict")
    if answers is not None:
        taking = [name for name, future in answers.items() if not future.done()]
        return f"{call} (as the leader, for {', '.join(sorted(taking))} to take its answer)" if taking else ""
    states = local.get("states")
    missing = set(local["worker_names"]) - set(states.gathered_objects) if states is not None else set()
    verb = "has" if len(missing) == 1 else "have"
    return f"{call} (as the leader, for {', '.join(sorted(missing))}, which {verb} not come)" if missing else ""


def by_threads(witness: int, groups: Groups) -> list[str]:
    """Return what the threads wait in that run the user's code, beside the main thread and this witness."""
    known = {threading.main_thread().ident, witness}
    frames = sys._current_frames().items()
    return sorted({_by_thread(frame, groups) for thread, frame in frames if thread not in known} - {""})


def message(name: str, peer: int | None, tag: int) -> str:
    """Describe a send or a receive: ``recv from rank 1 with the tag 7``."""
    other = "any rank" if peer is None else f"rank {peer}"
    return f"{name} {'from' if 'recv' in name else 'to'} {other}{f' with the tag {tag}' if tag else ''}"


def _by_thread(frame: FrameType, groups: Groups) -> str:
    stack = stack_of(frame)
    if not any(is_users(inner.file) for inner in stack) and not waits(stack):
        return ""
    operation, _, location = standing(stack).rpartition(" at ")
    return f"in {awaited(frame) or operation}{_of_group(frame.f_locals.get('group'), groups)} at {location}"


def _of_group(group: Any, groups: Groups) -> str:
    name = str(getattr(group, "group_name", ""))
    made_at = groups.made_at.get(name, "")
    return f" of group {name} (made at {made_at})" if made_at and group is not groups.default else ""


def _is_store(owner: ast.expr, frame: FrameType) -> bool:
    import torch.distributed as dist

    default = isinstance(owner, ast.Call) and called_name(owner) == "_get_default_store"
    return default or isinstance(_value(owner, frame), dist.Store)


def _keys(call: ast.Call, frame: FrameType) -> str:
    keys = _value(call.args[0], frame) if call.args else None
    names = [keys] if isinstance(keys, str) else keys
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return "a key"
    shown = ", ".join(repr(name) for name in names[:_MOST])
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"the key{'' if len(names) == 1 else 's'} {shown}{more}"


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name, an attribute, or a list of texts, as far as no code need run for it."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(element, frame) for element in node.elts]
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), "__dict__", {}).get(node.attr)
    return None
