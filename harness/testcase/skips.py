"""Decorators that skip, under torch's names. torch's end the process with an exit code; these raise SkipTest."""

from __future__ import annotations

import functools
import os
import sys
import unittest
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
import torch.cuda.nccl
import torch.distributed as dist
from everyrank.model.counts import count

Method = TypeVar("Method", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

IS_LINUX = sys.platform == "linux"
IS_MACOS = sys.platform == "darwin"
IS_WINDOWS = sys.platform == "win32"
IS_SANDCASTLE = False
TEST_WITH_ROCM = torch.version.hip is not None
TEST_WITH_TSAN = TEST_WITH_ASAN = TEST_WITH_DEV_DBG_ASAN = False
NO_MULTIPROCESSING_SPAWN = False


class TestSkip(NamedTuple):
    exit_code: int
    message: str


#: The exit codes that tests in torch's style may pass to sys.exit(), with the reason that each stands for.
TEST_SKIPS = {
    "backend_unavailable": TestSkip(72, "needs a backend that is not available"),
    "small_worldsize": TestSkip(73, "needs a larger world"),
    "no_cuda": TestSkip(74, "needs CUDA"),
    "multi-gpu-1": TestSkip(75, "needs 1 GPU"),
    "nccl": TestSkip(76, "needs NCCL"),
    "multi-gpu-2": TestSkip(77, "needs 2 GPUs"),
    "skipIfRocm": TestSkip(78, "does not run on ROCm"),
    "no_peer_access": TestSkip(79, "needs peer access between GPUs"),
    "multi-gpu-3": TestSkip(80, "needs 3 GPUs"),
    "multi-gpu-4": TestSkip(81, "needs 4 GPUs"),
    "multi-gpu-5": TestSkip(82, "needs 5 GPUs"),
    "multi-gpu-6": TestSkip(83, "needs 6 GPUs"),
    "multi-gpu-7": TestSkip(84, "needs 7 GPUs"),
    "multi-gpu-8": TestSkip(85, "needs 8 GPUs"),
    "generic": TestSkip(86, "skipped"),
    "odd_worldsize": TestSkip(87, "needs a world of even size"),
    "importerror": TestSkip(88, "needs a module that cannot be imported"),
    "no_accelerator": TestSkip(89, "needs an accelerator"),
}


def count_accelerators() -> int:
    """Return the number of accelerators. Called when a test runs, never at import."""
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    xpu = getattr(torch, "xpu", None)
    return int(xpu.device_count()) if xpu is not None and xpu.is_available() else 0


def at_least_x_gpu(x: int) -> bool:
    return count_accelerators() >= x


def _unless(holds: Callable[..., bool], reason: Callable[..., str]) -> Callable[[Method], Method]:
    """Skip the test, when it runs on its ranks, unless this condition holds."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def checked(self: Any, *arguments: Any, **keywords: Any) -> Any:
            __tracebackhide__ = True
            if not holds(self):
                raise unittest.SkipTest(reason(self))
            return method(self, *arguments, **keywords)

        return checked  # type: ignore[return-value]

    return decorate


def _needs(gpus: int) -> str:
    return f"needs {count(gpus, 'GPU')}, found {count_accelerators()}"


def skip_if_lt_x_gpu(x: int, *, allow_cpu: bool = False) -> Callable[[Method], Method]:
    """Skip the test if there are fewer GPUs; with ``allow_cpu``, run it if there are none."""
    return _unless(
        lambda self: count_accelerators() >= x or (allow_cpu and not count_accelerators()), lambda self: _needs(x)
    )


def skip_if_no_gpu(method: Method) -> Method:
    """Skip the test unless every rank can have its own GPU."""
    return _unless(
        lambda self: count_accelerators() >= int(self.world_size), lambda self: _needs(int(self.world_size))
    )(method)


def nccl_skip_if_lt_x_gpu(backend: str, x: int) -> Callable[[Method], Method]:
    """Like skip_if_lt_x_gpu, but only for NCCL."""
    return _unless(lambda self: backend != "nccl" or count_accelerators() >= x, lambda self: _needs(x))


require_n_gpus_for_nccl_backend = lambda n, backend: nccl_skip_if_lt_x_gpu(backend, n)  # noqa: E731


def skip_if_small_worldsize(method: Method) -> Method:
    return _unless(lambda self: int(self.world_size) >= 8, lambda self: "needs a world of 8 ranks or more")(method)


def skip_if_odd_worldsize(method: Method) -> Method:
    return _unless(lambda self: int(self.world_size) % 2 == 0, lambda self: "needs a world of even size")(method)


def requires_world_size(n: int) -> Decorator:
    """Set the test's own world size, for ``get_required_world_size``; each rank needs a GPU."""

    def decorate(method: Any) -> Any:
        method._required_world_size = n
        return _unless(lambda self: count_accelerators() >= n, lambda self: _needs(n))(method)

    return decorate


def get_required_world_size(obj: Any, default: int) -> int:
    method = getattr(obj, str(getattr(obj, "_testMethodName", "")), None)
    return int(getattr(method, "_required_world_size", default))


# --- decided when the file is imported ----------------------------------------------------------------


def skip_but_pass_in_sandcastle_if(condition: bool, reason: str) -> Decorator:
    return unittest.skipIf(condition, reason)


def skip_but_pass_in_sandcastle(reason: str) -> Decorator:
    return unittest.skip(reason)


sandcastle_skip_if, sandcastle_skip = skip_but_pass_in_sandcastle_if, skip_but_pass_in_sandcastle


def _has(backend: str) -> bool:
    return bool(dist.is_available() and getattr(dist, f"is_{backend}_available", lambda: False)())


def requires_gloo() -> Decorator:
    return unittest.skipUnless(_has("gloo"), "needs the backend gloo, which this torch does not have")


def requires_nccl() -> Decorator:
    return unittest.skipUnless(_has("nccl"), "needs the backend nccl, which this torch does not have")


def requires_ucc() -> Decorator:
    return unittest.skipUnless(_has("ucc"), "needs the backend ucc, which this torch does not have")


def requires_mpi() -> Decorator:
    return unittest.skipUnless(_has("mpi"), "needs the backend mpi, which this torch does not have")


def requires_nccl_version(version: tuple[int, ...], msg: str) -> Decorator:
    if not _has("nccl"):
        return requires_nccl()
    release = tuple(torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return unittest.skipIf(release < tuple(version), f"needs NCCL {version} or later, found {release}: {msg}")


def requires_accelerator_dist_backend(backends: Iterable[str] | None = None) -> Decorator:
    names = list(backends or ("nccl", "xccl", "hccl"))
    return unittest.skipUnless(any(map(_has, names)), f"needs one of the backends {', '.join(names)}")


def skip_if_win32() -> Decorator:
    return unittest.skipIf(IS_WINDOWS, "does not run on Windows")


def skip_if_rocm_multiprocess(method: Method) -> Method:
    decorated: Method = unittest.skipIf(TEST_WITH_ROCM, "does not run on ROCm")(method)
    return decorated


skipIfRocm = skip_if_rocm_multiprocess


def slowTest(method: Method) -> Method:
    """Skip the test unless PYTORCH_TEST_WITH_SLOW=1 asks for slow tests, as with torch."""
    runs_slow_tests = os.environ.get("PYTORCH_TEST_WITH_SLOW") == "1"
    decorated: Method = unittest.skipUnless(runs_slow_tests, "a slow test: set PYTORCH_TEST_WITH_SLOW=1")(method)
    return decorated
