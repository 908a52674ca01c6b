"""Helper functions for tests in torch's style, under torch's names."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
        for left in reversed(range(10)):
            try:
                return func(*arguments, **keywords)
            except RuntimeError as error:
                if not left or not any(text in str(error) for text in texts):
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


def init_multigpu_helper(world_size: int, backend: str) -> dict[int, list[int]]:
    """Return the GPUs of each rank, in equal parts; one for each rank with NCCL."""
    count = torch.cuda.device_count()
    share = 1 if backend == "nccl" else max(count // world_size, 1)
    return {rank: list(range(count))[rank * share : (rank + 1) * share] for rank in range(world_size)}


def simple_sparse_reduce_tests(rank: int, world_size: int, num_inputs: int = 1) -> list[tuple[Any, Any]]:
    """Return this rank's inputs for a sum of sparse tensors over all ranks, with the expected results."""

    def tensor(number: int, sparse_dims: int, dense_dims: int) -> torch.Tensor:
        # Tensor n holds the first n + 1 rows, each row 1.0: the tensors overlap and differ in size.
        rows = torch.arange(number + 1)
        indices = torch.stack([rows, *(torch.zeros_like(rows) for _ in range(sparse_dims - 1))])
        shape = [world_size * num_inputs, *(2 for _ in range(sparse_dims + dense_dims - 1))]
        return torch.sparse_coo_tensor(indices, torch.ones([number + 1, *(2 for _ in range(dense_dims))]), shape)

    cases = []
    for sparse_dims, dense_dims in ((1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (2, 1)):
        inputs = [tensor(rank * num_inputs + index, sparse_dims, dense_dims) for index in range(num_inputs)]
        total = sum(tensor(number, sparse_dims, dense_dims).to_dense() for number in range(world_size * num_inputs))
        cases.append((inputs, [total] * num_inputs))
    return cases


@contextlib.contextmanager
def captured_output() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Yield streams that receive the output of this context."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


@contextlib.contextmanager
def TemporaryFileName(**keywords: Any) -> Iterator[str]:
    """Yield the name of a closed file, and remove it afterwards."""
    file = tempfile.NamedTemporaryFile(delete=False, **keywords)  # noqa: SIM115
    file.close()
    try:
        yield file.name
    finally:
        with contextlib.suppress(OSError):
            os.unlink(file.name)


@contextlib.contextmanager
def TemporaryDirectoryName(suffix: str | None = None) -> Iterator[str]:
    """Yield the name of a folder, and remove it afterwards."""
    with tempfile.TemporaryDirectory(suffix=suffix) as folder:
        yield folder


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


def with_dist_debug_levels(levels: list[str]) -> Callable[[Any], Any]:
    """Run the method once for each level of TORCH_DISTRIBUTED_DEBUG."""

    def decorate(method: Any) -> Any:
        @functools.wraps(method)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            __tracebackhide__ = True
            before = os.environ.get("TORCH_DISTRIBUTED_DEBUG")
            result = None
            try:
                for level in levels:
                    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
                    dist.set_debug_level_from_env()
                    result = method(*arguments, **keywords)
                    dist.barrier()
            finally:
                os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
                if before is not None:
                    os.environ["TORCH_DISTRIBUTED_DEBUG"] = before
                dist.set_debug_level_from_env()
            return result

        return wrapped

    return decorate


def with_nccl_blocking_wait(method: Any) -> Any:
    """Run the method with TORCH_NCCL_BLOCKING_WAIT set and TORCH_NCCL_ASYNC_ERROR_HANDLING unset."""

    @functools.wraps(method)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        names = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT")
        before = {name: os.environ.pop(name, None) for name in names}
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        try:
            return method(*arguments, **keywords)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    return wrapped


def verify_ddp_error_logged(model_DDP: Any, err_substr: str) -> None:
    """Fail unless DDP's logging data contain this error."""
    data = model_DDP._get_ddp_logging_data()
    expected = err_substr.split("\nException raised from ")[0]
    for key in ("iteration", "has_error", "error"):
        if key not in data:
            raise AssertionError(f"the logging data of DDP have no {key!r}")
    if expected not in data["error"]:
        raise AssertionError(f"the logging data of DDP have the error {data['error']!r}, not {expected!r}")


def sm_is_or_higher_than(device: torch.device, major: int, minor: int) -> bool:
    """Return whether a CUDA device has this compute capability; True for other devices."""
    if device.type != "cuda":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (major, minor)


def run_tests(argv: list[str] | None = None) -> None:
    """For ``if __name__ == "__main__"``: run this file under pytest, and exit with its code.

    The arguments are pytest's; ``TestClass.test_method`` and ``TestClass`` name tests, as with unittest.
    """
    import pytest

    given = sys.argv if argv is None else argv
    file = str(getattr(sys.modules["__main__"], "__file__", given[0]))
    tests = [f"{file}::{name.replace('.', '::')}" for name in given[1:] if _names_a_test(name)]
    options = [argument for argument in given[1:] if not _names_a_test(argument)]
    sys.exit(int(pytest.main([*options, *(tests or [file])])))


def _names_a_test(argument: str) -> bool:
    found: Any = sys.modules["__main__"]
    for part in argument.split("."):
        found = getattr(found, part, None)
    return found is not None and not argument.startswith("-")
