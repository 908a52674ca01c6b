"""Compares two values for ``assertEqual``: tensors and numbers within a tolerance, containers by element."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: The relative and absolute tolerances by dtype that torch.testing.assert_close documents.
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
_EXACT = (0.0, 0.0)


@dataclass(frozen=True)
class Strictness:
    """How strictly values are compared. ``None``: the dtypes' tolerances, but not less than the floors."""

    rtol: float | None = None
    atol: float | None = None
    rtol_floor: float = 0.0
    atol_floor: float = 0.0
    equal_nan: bool = True
    dtype: bool = True
    device: bool = False
    layout: bool = False
    stride: bool = False
    coalesced: bool = False

    def tolerances(self, *dtypes: torch.dtype) -> tuple[float, float]:
        """Return the relative and the absolute tolerance for values of these dtypes."""
        if self.rtol is not None and self.atol is not None:
            return self.rtol, self.atol
        if (self.rtol is None) != (self.atol is None):
            raise ValueError("give both rtol and atol, or none of them")
        pairs = [_TOLERANCES.get(dtype, _EXACT) for dtype in dtypes]
        rtol = max(self.rtol_floor, *(relative for relative, _ in pairs))
        return rtol, max(self.atol_floor, *(absolute for _, absolute in pairs))


def difference(x: Any, y: Any, strictness: Strictness) -> str:
    """Return the first difference of two values, or an empty text."""
    return next(_differences(x, y, strictness, ""), "")


def _differences(x: Any, y: Any, strictness: Strictness, path: str) -> Iterator[str]:
    x, y = _alike(x, y)
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        yield from _of_tensors(x, y, strictness, path)
    elif _is_scalar(x) and _is_scalar(y):
        yield from _of_numbers(x, y, strictness, path)
    elif isinstance(x, (str, bytes)) or isinstance(y, (str, bytes)):
        yield from _unequal(x, y, path)
    elif _is_mapping(x) and _is_mapping(y):
        if set(x) != set(y):
            yield _with_path(path, f"the keys differ: {sorted(map(repr, set(x) ^ set(y)))} are in one of them only")
        else:
            for key in x:
                yield from _differences(x[key], y[key], strictness, f"{path}[{key!r}]")
    elif _is_sequence(x) and _is_sequence(y):
        if len(x) != len(y):
            yield _with_path(path, f"the lengths differ: {len(x)} and {len(y)}")
        else:
            for index in range(len(x)):
                yield from _differences(x[index], y[index], strictness, f"{path}[{index}]")
    else:
        yield from _unequal(x, y, path)


def _unequal(x: Any, y: Any, path: str) -> Iterator[str]:
    if x is not y and x != y:
        yield _with_path(path, f"{_short(x)} != {_short(y)}")


def _of_numbers(x: Any, y: Any, strictness: Strictness, path: str) -> Iterator[str]:
    """Compare numbers of any kind; one of them may be a tensor with one element."""
    x, y = _plain(x), _plain(y)
    if isinstance(x, bool) or isinstance(y, bool):
        return (yield from _unequal(bool(x), bool(y), path))
    rtol, atol = strictness.tolerances(_dtype_of(x), _dtype_of(y))
    if x == y or (strictness.equal_nan and x != x and y != y):
        return None
    if not (atol or rtol):
        yield from _unequal(x, y, path)
    elif not abs(x - y) <= atol + rtol * abs(y):
        yield _with_path(path, f"{x!r} and {y!r} are not close (allowed: {atol:g} absolute, {rtol:g} relative)")


def _of_tensors(x: torch.Tensor, y: torch.Tensor, strictness: Strictness, path: str) -> Iterator[str]:
    if strictness.coalesced and x.layout == y.layout == torch.sparse_coo and x.is_coalesced() != y.is_coalesced():
        yield _with_path(path, "one of them is coalesced, the other not")
        return
    rtol, atol = strictness.tolerances(x.dtype, y.dtype)
    try:
        torch.testing.assert_close(
            x,
            y,
            rtol=rtol,
            atol=atol,
            equal_nan=strictness.equal_nan,
            check_device=strictness.device,
            check_dtype=strictness.dtype,
            check_layout=strictness.layout,
            check_stride=strictness.stride,
        )
    except AssertionError as error:
        yield _with_path(path, str(error))


def _alike(x: Any, y: Any) -> tuple[Any, Any]:
    """Convert arrays to tensors, and a list that is compared with a tensor."""
    x, y = _array(x), _array(y)
    if isinstance(x, torch.Tensor) and _is_list(y):
        y = torch.as_tensor(y, dtype=x.dtype, device=x.device)
    elif isinstance(y, torch.Tensor) and _is_list(x):
        x = torch.as_tensor(x, dtype=y.dtype, device=y.device)
    return _unnested(x), _unnested(y)


def _array(value: Any) -> Any:
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        if not hasattr(value, "shape") or value.shape == ():
            return value.item()
        try:
            return torch.as_tensor(value)
        except TypeError:
            return value.tolist()  # torch has no such dtype
    return value


def _unnested(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_nested and value.layout == torch.strided:
        return value.unbind()
    return value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_sequence(value: Any) -> bool:
    containers = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ParameterList)
    return _is_list(value) or isinstance(value, containers)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, (Mapping, torch.nn.ModuleDict, torch.nn.ParameterDict))


def _is_scalar(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_sparse
    return isinstance(value, numbers.Number)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _dtype_of(value: Any) -> torch.dtype:
    if isinstance(value, complex):
        return torch.complex64
    return torch.float32 if isinstance(value, float) else torch.int64


def _with_path(path: str, text: str) -> str:
    return f"at {path}: {text}" if path else text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 500 else text[:500] + " ..."
