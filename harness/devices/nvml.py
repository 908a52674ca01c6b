"""Ask NVIDIA's driver for its GPUs, without CUDA, by a dozen functions of its library (NVML)."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from everyrank.devices.protocol import Gpu

_P2P_READ = 0  # NVML_P2P_CAPS_INDEX_READ
_P2P_OK = 0  # NVML_P2P_STATUS_OK
_MIG_ON = 1


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class NvmlError(Exception):
    """A function of the library returned an error."""


def gpus() -> tuple[Gpu, ...] | None:
    """Return the GPUs by bus order, those in MIG mode with their instances; None without the library."""
    for name in ("libnvidia-ml.so.1", "nvml.dll"):
        with contextlib.suppress(OSError):
            return read(ctypes.CDLL(name))
    return None


def read(library: Any) -> tuple[Gpu, ...] | None:
    """Return the GPUs of a loaded library; None if it has no driver."""
    try:
        with _opened(library):
            return tuple(_with_peers(library, [_handle(library, number) for number in range(_count(library))]))
    except (NvmlError, AttributeError):  # there is no driver, or it is too old
        return None


@contextlib.contextmanager
def _opened(library: Any) -> Iterator[None]:
    _check(library.nvmlInit_v2())
    try:
        yield
    finally:
        library.nvmlShutdown()


def _check(code: int) -> None:
    if code:
        raise NvmlError(code)


def _count(library: Any) -> int:
    count = ctypes.c_uint()
    _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
    return count.value


def _handle(library: Any, number: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _check(library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)))
    return handle


def _with_peers(library: Any, handles: list[ctypes.c_void_p]) -> Iterator[Gpu]:
    uuids = [_text(library.nvmlDeviceGetUUID, handle) for handle in handles]
    for handle, uuid in zip(handles, uuids, strict=True):
        reached = {
            other_uuid
            for other, other_uuid in zip(handles, uuids, strict=True)
            if other_uuid != uuid and _reaches(library, handle, other)
        }
        capability = _capability(library, handle)
        instances = tuple(_instances(library, handle, capability))
        name = _text(library.nvmlDeviceGetName, handle)
        yield Gpu(
            uuid,
            name,
            _memory(library, handle),
            capability,
            frozenset(reached),
            instances,
            _in_mig_mode(library, handle),
        )


def _instances(library: Any, parent: ctypes.c_void_p, capability: tuple[int, int]) -> Iterator[Gpu]:
    """Yield the MIG instances of a GPU. No instance reaches another GPU or instance directly."""
    if not _in_mig_mode(library, parent):
        return
    most = ctypes.c_uint()
    _check(library.nvmlDeviceGetMaxMigDeviceCount(parent, ctypes.byref(most)))
    for number in range(most.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetMigDeviceHandleByIndex(parent, ctypes.c_uint(number), ctypes.byref(handle)) == 0:
            uuid, name = _text(library.nvmlDeviceGetUUID, handle), _text(library.nvmlDeviceGetName, handle)
            yield Gpu(uuid, name, _memory(library, handle), capability)


def _in_mig_mode(library: Any, handle: ctypes.c_void_p) -> bool:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    code = library.nvmlDeviceGetMigMode(handle, ctypes.byref(current), ctypes.byref(pending))
    return code == 0 and current.value == _MIG_ON  # an older GPU does not support the call


def _text(function: Any, handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(96)
    _check(function(handle, buffer, ctypes.c_uint(len(buffer))))
    return buffer.value.decode("utf-8", "replace")


def _memory(library: Any, handle: ctypes.c_void_p) -> int:
    """Return the memory of a GPU in bytes; 0 for a GPU that shares the host's memory."""
    memory = _Memory()
    code = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return memory.total if code == 0 else 0


def _capability(library: Any, handle: ctypes.c_void_p) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def _reaches(library: Any, gpu: ctypes.c_void_p, other: ctypes.c_void_p) -> bool:
    status = ctypes.c_int(-1)
    code = library.nvmlDeviceGetP2PStatus(gpu, other, ctypes.c_int(_P2P_READ), ctypes.byref(status))
    return code == 0 and status.value == _P2P_OK
