"""The arena of ``sharded-optimizer``: each rank has its shards and a whole reference, and compares them."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from everyrank.suites.arena.base import BaseArena
from everyrank.suites.arena.subject_errors import noise
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter
from everyrank.suites.sharded_optimizer.geometry import Block
from everyrank.suites.sharded_optimizer.model import Param
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, ShardMetadata

SGD = torch.optim.SGD

#: A choice that a subject may declare: its caller averages the gradients of whole parameters.
CALLER_SYNCS = "caller-syncs-whole"

#: A choice that claims more: a whole parameter's gradient that some ranks do not have is one of zeros there.
NONE_IS_ZERO = "none-is-zero"

#: A choice that claims more: of a group that one rank refuses nothing stays on any.
DROPS_REFUSED = "drops-refused-groups"


@dataclass(eq=False)
class Parameter:
    """One parameter: the value given to the subject, this rank's tensors of it, and its twin in the reference."""

    name: str
    number: int
    twin: torch.Tensor
    given: Any
    pieces: list[tuple[torch.Tensor, Any]]

    @property
    def whole(self) -> bool:
        return not isinstance(self.given, ShardedTensor)

    def named(self) -> dict[str, tuple[torch.Tensor, Any]]:
        """Return this rank's tensors by name, each with its index into the whole."""
        if self.whole:
            return {self.name: self.pieces[0]}
        return {f"{self.name}, shard at {tuple(part.start for part in piece[1])}": piece for piece in self.pieces}


@dataclass
class Arena(BaseArena):
    """The subject, the point and the parameters of one case, on one rank."""

    seed: int = 11
    parameters: list[Parameter] = field(default_factory=list)

    @property
    def syncs(self) -> bool:
        """Whether the subject claims to average the gradients of whole parameters."""
        return CALLER_SYNCS not in self.subject.declares

    def generator(self, *more: int) -> torch.Generator:
        return torch.Generator().manual_seed(hash((self.seed, *more)) % 2**31)

    def another(self) -> Arena:
        """Return an arena of the same case without parameters."""
        return replace(self, parameters=[])

    def make(self, params: Sequence[Param], dtype: torch.dtype = torch.float64) -> list[Parameter]:
        """Make parameters with distinct values, equal to those of their twins."""
        shared = [torch.Size(param.shape).numel() for param in params if param.layout == "shared"]
        buffer = torch.zeros(sum(shared), dtype=dtype, device=self.world.device)
        parts = iter(buffer.split(shared))
        return [self._make(param, dtype, next(parts) if param.layout == "shared" else None) for param in params]

    def _make(self, param: Param, dtype: torch.dtype, memory: torch.Tensor | None) -> Parameter:
        dtype = getattr(torch, param.dtype) if param.dtype else dtype
        value = noise(param.shape, dtype, self.generator(len(self.parameters), 1)).to(self.world.device)
        twin = value.clone().requires_grad_(not param.frozen)
        if param.whole:
            given = laid_out(value, param.layout, memory).requires_grad_(not param.frozen)
        else:
            given = self.sharded(value, param.blocks(self.size), not param.frozen)
        return self.adopt(param.name, given, twin)

    def sharded(self, value: torch.Tensor, blocks: Sequence[Block], requires_grad: bool) -> Any:
        """Make a ShardedTensor of these blocks. It needs no communication: each rank knows the whole plan."""
        metadata = [
            ShardMetadata(list(block.offsets), list(block.sizes), self.placement(block.rank)) for block in blocks
        ]
        shards = [
            Shard(value[block.index].clone().requires_grad_(requires_grad), described)
            for block, described in zip(blocks, metadata, strict=True)
            if block.rank == self.rank
        ]
        properties = TensorProperties(
            dtype=value.dtype, layout=value.layout, requires_grad=requires_grad,
            memory_format=torch.contiguous_format, pin_memory=False,
        )  # fmt: skip
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            shards, ShardedTensorMetadata(metadata, value.size(), properties)
        )

    def placement(self, rank: int) -> str:
        kind = torch.device(self.world.device).type
        return f"rank:{rank}/cuda:{rank}" if kind == "cuda" else f"rank:{rank}/cpu"

    def spec(self, dim: int = 0) -> ChunkShardingSpec:
        """Return a plain cut in rank order, for the subject's own shard_parameter."""
        return ChunkShardingSpec(dim, [self.placement(rank) for rank in range(self.size)])

    def build(self, optimizer: Any, parameters: Sequence[Parameter], *args: Any, **kwargs: Any) -> Any:
        """Build the subject over these parameters. Let its errors pass: the law handles them."""
        return self.build_over(optimizer, {param.name: param.given for param in parameters}, *args, **kwargs)

    def build_over(self, optimizer: Any, named: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        built = self.subject.build(optimizer, named, *args, **kwargs)
        if not callable(getattr(built, "step", None)):
            raise BrokenAdapter(
                f"build of {self.subject.name} returned a {type(built).__name__}, which has no step(closure)"
            )
        return built

    @functools.cached_property
    def plain_optimizer(self) -> Any:
        """An optimizer of the subject as the plainest use builds it, to be asked what it has."""
        return self.build(SGD, self.make([Param("weight", (6, 3), geometry="chunked")]), lr=0.1)

    def tool(self, name: str) -> Callable[..., Any]:
        """Return the subject's tool for modules, ``named_parameters`` or ``shard_parameter``."""
        found: Any = getattr(self.subject.build, name, None)
        if not callable(found):
            raise AttributeError(f"build of {self.subject.name} has no {name}(): see the contract's docstring")
        return found  # type: ignore[no-any-return]

    def give_gradients(
        self,
        parameters: Sequence[Parameter],
        step: int,
        own: bool = False,
        turned: bool = True,
        without: int | None = None,
    ) -> None:
        """Give these parameters new gradients, the others none, and the reference the same, or the mean over ranks.

        ``own``: whole parameters get a different gradient on each rank, if the subject claims to average them:
        that of a matrix lies transposed on every other rank, if they may be ``turned``, and the rank ``without`` has
        none.
        """
        for param in self.parameters:
            param.twin.grad = None
            for tensor, _ in param.pieces:
                tensor.grad = None
        for param in parameters:
            if param.whole and own and self.syncs:
                param.twin.grad, mine = self.own_gradient(param, step, without=without)
                if turned and mine is not None and mine.dim() == 2 and (self.rank + step) % 2:
                    mine = laid_out(mine, "transposed")
                param.pieces[0][0].grad = mine
                continue
            data = self.data(param, step)
            param.twin.grad = self.alike(param, gradient(param.twin, data))
            for tensor, index in param.pieces:
                tensor.grad = self.alike(param, gradient(tensor, data[index]))

    def own_gradient(
        self, param: Parameter, step: int, base: torch.Tensor | float = 0.0, without: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the mean of what ranks add to ``base``, and this rank's part; the rank ``without`` adds nothing."""
        ranks = [averageable(base + self.data(param, step, rank + 1), self.size) for rank in range(self.size)]
        mean = torch.stack([part for rank, part in enumerate(ranks) if rank != without]).sum(0) / self.size
        return mean, None if self.rank == without else ranks[self.rank].clone()

    def alike(self, param: Parameter, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient that all ranks get: of a whole parameter it is its own mean, bit for bit."""
        return averageable(gradient, self.size) if param.whole else gradient

    def data(self, param: Parameter, step: int, rank: int = 0) -> torch.Tensor:
        """Return new data for each parameter at each step."""
        drawn = noise(param.twin.shape, param.twin.dtype, self.generator(step, param.number, rank, 2))
        return drawn.to(self.world.device)

    def again(self) -> list[Parameter]:
        """Replace the parameters by copies, as if a fresh process had loaded them."""
        self.parameters = [self._copied(param) for param in self.parameters]
        return self.parameters

    def _copied(self, param: Parameter) -> Parameter:
        if param.whole:
            given: Any = param.given.detach().clone().requires_grad_(param.given.requires_grad)
        else:
            shards = [
                Shard(shard.tensor.detach().clone().requires_grad_(shard.tensor.requires_grad), shard.metadata)
                for shard in param.given.local_shards()
            ]
            given = ShardedTensor._init_from_local_shards_and_global_metadata(shards, param.given.metadata())
        return replace(param, given=given, pieces=pieces_of(given))

    def adopt(self, name: str, given: Any, twin: torch.Tensor) -> Parameter:
        """Add a parameter: what the subject gets, and the reference's twin of it."""
        made = Parameter(name, len(self.parameters), twin, given, pieces_of(given))
        self.parameters.append(made)
        return made


@contextlib.contextmanager
def open_arena(subject: Subject, point: Point) -> Iterator[Arena]:
    """Give each rank its arena, in the default group. At the end all ranks agree on one outcome."""
    with warnings.catch_warnings():
        # ShardedTensor warns that it is deprecated at every use; torch warns of a tied parameter, and steps it twice.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "optimizer contains a parameter group with duplicate")
        with Arena.opened(subject, point) as arena:
            yield arena


# --- values ------------------------------------------------------------------------------------------


def pieces_of(given: Any) -> list[tuple[torch.Tensor, Any]]:
    """Return this rank's tensors of a parameter, each with its index into the whole."""
    if not isinstance(given, ShardedTensor):
        return [(given, ...)]
    found = []
    for shard in given.local_shards():
        starts = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
        found.append((shard.tensor, tuple(slice(start, start + size) for start, size in starts)))
    return found


def laid_out(value: torch.Tensor, layout: str, memory: torch.Tensor | None = None) -> torch.Tensor:
    """Return the same values in memory of this layout, or in the memory that is given."""
    if memory is not None:
        return memory.view(value.shape).copy_(value).detach()
    if layout == "transposed":
        return value.t().contiguous().t().detach()
    if layout == "view":
        storage = torch.zeros(2, value.numel() + 1, dtype=value.dtype, device=value.device)
        made = storage[1, 1:].view(value.shape)
        made.copy_(value)
        return made.detach()
    return value.clone()


@torch.no_grad()
def gradient(value: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return a gradient that depends on the data and on the parameter, element by element."""
    return data + value * 0.5


#: How many binary digits the largest number of a gradient has that ranks average.
_DIGITS = {torch.float64: 40, torch.float32: 14, torch.float16: 6, torch.bfloat16: 3}


def averageable(value: torch.Tensor, ranks: int) -> torch.Tensor:
    """Round to multiples of the number of ranks: whoever adds and divides, in any order, gets the same mean.

    Of other numbers g, a seventh is not (g + g + g) / 3.
    """
    if value.is_complex():
        return torch.view_as_complex(averageable(torch.view_as_real(value), ranks))
    largest = float(value.detach().abs().max()) if value.numel() else 0.0
    if not largest:
        return value
    unit = ranks * 2.0 ** (math.frexp(largest)[1] - _DIGITS[value.dtype])
    return (value / unit).round() * unit
