"""The models of scripts of ``sharded-optimizer``: parameters, their cuts, and an optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from everyrank.suites.sharded_optimizer.geometry import CUTS, Block, along


@dataclass(frozen=True)
class Param:
    """One parameter. ``cut`` lists rank and length of each block along ``dim``; None for a whole parameter."""

    name: str
    shape: tuple[int, ...]
    cut: tuple[tuple[int, int], ...] | None = None
    dim: int = 0
    layout: str = "plain"
    """For a whole parameter: plain, view, transposed, or shared: in one buffer with others of this layout."""
    frozen: bool = False
    tool: bool = False
    """Whether the subject's own shard_parameter cuts it, evenly and in rank order."""
    also: str = ""
    """A second name of the same parameter."""
    table: bool = False
    """Whether its gradients are sparse, as those of a table of embeddings."""
    zero: bool = False
    """Whether its gradient is zero, except in a closure."""
    dtype: str = field(default="", repr=False)
    """Its dtype, if it is another than the model's. ``by_model`` chooses by the text of the rest."""
    values: str = field(default="", repr=False)
    """What its gradients are like, except in a closure: huge, tiny, or opposite: where ranks have different ones, the
    first two have extreme numbers, of which the mean is zero."""
    geometry: str = ""
    """In place of ``cut``, in the model of a law: the name of what cuts it, in a world of any size."""

    @property
    def names(self) -> list[str]:
        return [self.name, self.also] if self.also else [self.name]

    @property
    def whole(self) -> bool:
        return self.cut is None and not self.geometry

    def blocks(self, size: int) -> list[Block]:
        """Return its shards in a world of this size."""
        if self.geometry:
            return CUTS[self.geometry](self.shape, self.dim, size)
        owners, lengths = zip(*(self.cut or ()), strict=True)
        return along(self.shape, self.dim, owners, lengths)


@dataclass(frozen=True)
class Model:
    """Parameters, and an optimizer over the first of them."""

    size: int
    params: tuple[Param, ...]
    optimizer: str = "SGD"
    """A row of the optimizer table."""
    variant: str = "defaults"
    subclass: str = ""
    """Of the row's class: ``unchanged``, or ``signed``, a user's own SGD that takes the sign of each gradient."""
    dtype: str = "float64"
    first: int = 8
    """How many parameters the optimizer is built with; the others may come as groups."""
    module: bool = False
    """Whether the parameters are in a module, for the subject's tools."""

    @property
    def torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def dtypes(self) -> set[str]:
        return {param.dtype or self.dtype for param in self.params}
