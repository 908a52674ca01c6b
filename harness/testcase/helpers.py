"""Helper functions for tests in torch's style, under torch's names."""

from __future__ import annotations

import contextlib
import functools
import random
import socket
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist

dist: Any = torch_dist  # torch.distributed has more names than it exports


def find_free_port() -> int:
    """Return a port that was free a moment ago."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def retry_on_connect_failures(func: Any = None, connect_errors: Any = ("Address already in use",)) -> Any:
    """Call a function again, up to ten times, if it fails with one of these texts."""
    if func is None:
        return functools.partial(retry_on_connect_failures, connect_errors=connect_errors)
    texts = [connect_errors] if isinstance(connect_errors, str) else list(connect_errors)

    @functools.wraps(func)
    def again(*arguments: Any, **keywords: Any) -> Any:
        for retries in reversed(range(10)):
            try:
                return func(*arguments, **keywords)
            except RuntimeError as error:
                if not retries or not any(text in str(error) for text in texts):
                    raise
                time.sleep(random.random())
        raise AssertionError("not reached")

    return again


@retry_on_connect_failures
def create_tcp_store(
    addr: str = "127.0.0.1",
    world_size: int = 1,
    is_master: bool = True,
    timeout: timedelta = timedelta(minutes=5),
    wait_for_workers: bool = True,
    jit_class: bool = False,
    use_libuv: bool = True,
) -> Any:
    """Return a TCPStore on a free port."""
    port = find_free_port()
    if jit_class:
        return torch.classes.dist_c10d.TCPStore(
            addr, port, world_size, is_master, int(timeout.total_seconds() * 1000)
        )
    return dist.TCPStore(
        addr,
        port,
        world_size,
        is_master,
        timeout=timeout,
        wait_for_workers=wait_for_workers,
        use_libuv=use_libuv,
    )


def create_device(interface: str | None = None, lazy_init: bool = False) -> Any:
    """Return a gloo device, on the loopback interface unless another is named."""
    gloo = dist.ProcessGroupGloo
    if interface is None:
        return gloo.create_device(hostname="127.0.0.1", lazy_init=lazy_init)
    return gloo.create_device(interface=interface, lazy_init=lazy_init)


def with_temp_dir(func: Any = None) -> Any:
    """Set ``self.temp_dir`` to one folder for all ranks; rank 0 makes and removes it."""
    if func is None:
        return with_temp_dir

    @functools.wraps(func)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> None:
        __tracebackhide__ = True
        if not dist.is_initialized():
            with tempfile.TemporaryDirectory() as folder:
                self.temp_dir = folder
                func(self, *arguments, **keywords)
            return
        first = dist.get_rank() == 0
        names = [tempfile.mkdtemp() if first else ""]
        dist.broadcast_object_list(names)
        self.temp_dir = names[0]
        try:
            func(self, *arguments, **keywords)
        finally:
            if first:
                import shutil

                shutil.rmtree(self.temp_dir, ignore_errors=True)

    return wrapped


def run_tests(argv: list[str] | None = None) -> None:
    """For ``if __name__ == "__main__"``: run this file under pytest, and exit with its code.

    The arguments are pytest's; ``TestClass.test_method`` and ``TestClass`` name tests, as with unittest.
    """
    import pytest

    arguments = sys.argv if argv is None else argv
    file = str(getattr(sys.modules["__main__"], "__file__", arguments[0]))
    tests = [f"{file}::{name.replace('.', '::')}" for name in arguments[1:] if _names_a_test(name)]
    options = [argument for argument in arguments[1:] if not _names_a_test(argument)]
    sys.exit(int(pytest.main([*options, *(tests or [file])])))


def _names_a_test(argument: str) -> bool:
    value: Any = sys.modules["__main__"]
    for part in argument.split("."):
        value = getattr(value, part, None)
    return value is not None and not argument.startswith("-")
