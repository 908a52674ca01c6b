"""The models of scripts of ``rpc-optimizer``: parameters on their owners, and optimizers over some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from everyrank.fixtures.optimizers import Row, Variant, row


@dataclass(frozen=True)
class Param:
    """One parameter."""

    owner: int
    shape: tuple[int, ...]
    frozen: bool = False
    gradient: str = "dense"
    """dense, sparse, repeated: sparse with a row that comes twice, or zero."""
    layout: str = "plain"
    """plain, transposed, or rows: a view of every second row."""
    same_as: int | None = None
    """The number of an earlier parameter, if this is another RRef of its tensor."""
    dtype: str = field(default="", repr=False)
    """The dtype, if it is not the model's."""
    tiny: bool = field(default=False, repr=False)
    """Whether its values and gradients are near the least numbers of float32."""
    alike: str = field(default="", repr=False)
    """What it has in common at the start with all others of its shape that are alike: their ``values``; or ``all``:
    their gradients, too, and the storage of those of one owner."""


@dataclass(frozen=True)
class Optimizer:
    """One optimizer over some of the parameters, in this order."""

    params: tuple[int, ...]
    name: str = "SGD"
    """A row of the optimizer table."""
    variant: str = "lr"
    own: str = ""
    """A user's class: ``subclass`` changes nothing, ``signed`` takes each gradient's sign and has its base's name,
    ``planted`` can be made to fail or to wait."""
    given: str = "named"
    """How the arguments are given: ``named``, ``positional``, ``explicit`` with every default by name, or ``zeros``:
    with a zero for each number that has another default and may be zero."""
    client: int = 0
    """The rank that builds it, and makes its steps."""

    @property
    def row(self) -> Row:
        return row(self.name)


@dataclass(frozen=True)
class Model:
    """Parameters, and optimizers over them."""

    size: int
    params: tuple[Param, ...]
    optimizers: tuple[Optimizer, ...]
    dtype: str = "float64"

    @property
    def dtypes(self) -> set[str]:
        """The dtypes of its parameters."""
        return {param.dtype or self.dtype for param in self.params} or {self.dtype}

    def tensor(self, number: int) -> int:
        """Return the number of the first parameter with this one's tensor."""
        same_as = self.params[number].same_as
        return number if same_as is None else same_as

    @property
    def sparse(self) -> bool:
        return any(param.gradient in ("sparse", "repeated") for param in self.params)

    @property
    def given(self) -> set[int]:
        """The tensors that an optimizer has."""
        return {self.tensor(number) for optimizer in self.optimizers for number in optimizer.params}

    @property
    def own(self) -> bool:
        """Whether an optimizer is of a user's class."""
        return any(optimizer.own for optimizer in self.optimizers)


def drawn_variants(row: Row) -> Iterator[Variant]:
    """Yield the variants of an optimizer that scripts have. A flat list of RRefs has no groups."""
    for variant in row.variants:
        if not (row.needs | variant.needs) & {"closure", "cuda", "non-leaf"} and not variant.group_arguments:
            yield variant
