"""What the processes of a run must have in common: the same versions, the same files, the same tests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import socket
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from everyrank.devices.protocol import Gpu
from everyrank.errors import MisuseError
from everyrank.launch.remote.link import Link
from everyrank.launch.remote.run_folder import boot
from everyrank.wire.remote import AskTests, OneGpu, Ready, Tests

if TYPE_CHECKING:
    import pytest

#: At most this many names are listed in an error.
_LISTED = 5


def describe(
    session: pytest.Session | None, node: str, folder: str, folder_id: str = "", gpus: Iterable[Gpu] = ()
) -> Ready:
    """Describe this process, and its folder of the run; without a session, it has collected no tests."""
    return Ready(
        host=socket.gethostname(),
        node=node,
        boot=boot(),
        clock=time.monotonic(),
        versions=_versions(),
        files=files(session.config.rootpath, paths(session)) if session is not None else {},
        tests=_digest("\n".join(sorted(nodeids(session))).encode("utf-8", "backslashreplace"))
        if session is not None
        else "",
        folder=folder,
        folder_id=folder_id,
        gpus=[OneGpu(gpu.uuid, gpu.memory, gpu.capability, gpu.handle, gpu.type) for gpu in gpus],
    )


def nodeids(session: pytest.Session) -> list[str]:
    return [item.nodeid for item in session.items]


def check(own: Ready, described: Iterable[tuple[str, Ready]]) -> None:
    """Raise a MisuseError unless all of these processes, each with its name, can keep ranks for this one."""
    for name, other in described:
        if other.problem:
            raise MisuseError(f"{name} cannot keep ranks: {other.problem}")
        for package in sorted(own.versions.keys() | other.versions.keys()):
            here, there = own.versions.get(package, "none"), other.versions.get(package, "none")
            if here != there:
                raise MisuseError(f"{name} has another {package} than this process: {there} there, {here} here")


def check_files(own: dict[str, str], name: str, other: dict[str, str], hint: str = "") -> None:
    """Raise a MisuseError unless the process of this name has our files of tests."""
    if wrong := _different_files(own, other):
        raise MisuseError(f"{name} has other test files than this process: {wrong}{hint}")


def check_tests(session: pytest.Session, own: Ready, links: Sequence[Link]) -> None:
    """Raise a MisuseError unless all of these processes have collected this process's tests."""
    for link in links:
        check_files(own.files, link.name, link.ready.files)
        if link.ready.tests != own.tests:
            _check_tests(session, link)


def _different_files(own: dict[str, str], other: dict[str, str]) -> str:
    missing = [f"{name} is not there" for name in own if name not in other]
    changed = [f"{name} differs" for name, digest in own.items() if other.get(name, digest) != digest]
    return _some([*missing, *changed])


def _check_tests(session: pytest.Session, link: Link) -> None:
    tests = link.ask(AskTests(link.request()), Tests)
    if tests is None:
        raise MisuseError(link.lost)
    there = set(tests.nodeids)
    if missing := [nodeid for nodeid in nodeids(session) if nodeid not in there]:
        raise MisuseError(
            f"{link.name} has collected other tests than this process. These are not there: {_some(missing)}. If the "
            "same files give other tests, a parameter differs between processes: by a random number, the time, or "
            "the order of a set (PYTHONHASHSEED)"
        )


def _some(names: list[str]) -> str:
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _versions() -> dict[str, str]:
    versions = {"Python": platform.python_version()}
    for name in ("torch", "everyrank", "pytest"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def paths(session: pytest.Session) -> set[Path]:
    """Return the files of a session's tests."""
    return {item.path for item in session.items}


def files(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return digests of these files, as far as they are there, by their paths below ``root``."""
    digests = {}
    for path in paths:
        with contextlib.suppress(OSError):
            digests[os.path.relpath(path, root)] = _digest(path.read_bytes())
    return digests


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
