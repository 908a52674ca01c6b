"""Which element a regular tensor would have where it has another: most elements say what the others should be."""

from __future__ import annotations

import torch

#: Which part of a tensor may be out of order, so that the others still say what the order is.
_PART = 0.1


def regular(numbers: torch.Tensor) -> torch.Tensor | None:
    """Return the numbers with those put right that stand out of a regular order; None if none does.

    Rows are neighbours at one distance, and so are the elements of a row. A row between two that are right, and
    single elements of a row, are found; a tensor whose rows stand in an order of their own is left as it is.
    """
    rows = _rows(numbers)
    if rows.numel() < 4 or int((rows < 0).sum()) > _PART * rows.numel():
        return None
    step = _usual(rows.diff(dim=1)) if rows.shape[1] > 1 else 0
    across = torch.arange(rows.shape[1]) * step
    starts = (rows - across).mode(dim=1).values
    starts = _in_line(starts)
    found = starts[:, None] + across
    off = found != rows
    if not bool(off.any()) or float(off.double().mean()) > max(_PART, 2.5 / len(rows) if len(rows) > 8 else 0):
        return None
    return found.view(numbers.shape)


def _rows(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.reshape(len(numbers), -1) if numbers.ndim > 1 else numbers.reshape(-1, 1)


def _usual(values: torch.Tensor) -> int:
    return int(values.reshape(-1).mode().values)


def _in_line(starts: torch.Tensor) -> torch.Tensor:
    """Return the first elements of rows, with those put right whose neighbours are in line with each other."""
    if len(starts) < 4:
        return starts
    step, found = _usual(starts.diff()), starts.clone()
    for row in range(len(starts)):
        around = [index for index in (row - 2, row - 1, row + 1, row + 2) if 0 <= index < len(starts)]
        expected = {int(starts[index]) + (row - index) * step for index in around}
        if len(expected) == 1:
            found[row] = expected.pop()
    return found
