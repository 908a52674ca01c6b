"""Where the laws of ``sharded-optimizer`` are checked: every rank has its shards, and the whole reference too."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it; here once, instead of in every rank
from everyrank import World, current_world
from everyrank.suites.acts import noise
from everyrank.suites.compare import EXACT, Comparison, Tolerance
from everyrank.suites.contract import Point
from everyrank.suites.errors import BrokenAdapter, Deviation
from everyrank.suites.sharded_optimizer.geometry import Block, Geometry, chunked
from everyrank.suites.subject import Subject
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, ShardMetadata

#: What a subject may declare: it does not average the gradients of whole parameters, its caller has done so.
CALLER_SYNCS = "caller-syncs-whole"


@dataclass(frozen=True)
class Spec:
    """One parameter to be made: sharded by a geometry, or whole without one."""

    shape: tuple[int, ...]
    geometry: Geometry | None = chunked
    dim: int = 0
    layout: str = "plain"  # of a whole one: plain, view, transposed
    requires_grad: bool = True


@dataclass(eq=False)
class Parameter:
    """One parameter: what the subject is given, this rank's tensors of it, and its twin in the reference."""

    name: str
    number: int
    twin: torch.Tensor
    given: Any
    pieces: list[tuple[torch.Tensor, Any]]

    @property
    def whole(self) -> bool:
        return not isinstance(self.given, ShardedTensor)

    def values(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """This rank's tensors, each with the slice of the twin that it should equal."""
        if self.whole:
            return {self.name: (self.pieces[0][0], self.twin)}
        return {
            f"{self.name}, shard at {tuple(one.start for one in index)}": (tensor, self.twin[index])
            for tensor, index in self.pieces
        }


@dataclass
class Arena:
    """What each rank has in hand."""

    subject: Subject
    point: Point
    world: World
    seed: int = 11
    parameters: list[Parameter] = field(default_factory=list)
    parted: bool = False
    _met: int = 0

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        return self.world.size

    @property
    def syncs(self) -> bool:
        """Whether the subject claims to average the gradients of whole parameters."""
        return CALLER_SYNCS not in self.subject.declares

    def generator(self, *more: int) -> torch.Generator:
        return torch.Generator().manual_seed(hash((self.seed, *more)) % 2**31)

    def make(self, specs: Sequence[Spec], dtype: torch.dtype = torch.float64) -> list[Parameter]:
        """Parameters, distinct in value, equal to their twins."""
        return [self._make(spec, dtype) for spec in specs]

    def _make(self, spec: Spec, dtype: torch.dtype) -> Parameter:
        number = len(self.parameters)
        value = noise(spec.shape, dtype, self.generator(number, 1)).to(self.world.device)
        twin = value.clone().requires_grad_(spec.requires_grad)
        name = f"layer{number}.weight"
        if spec.geometry is None:
            given = laid_out(value, spec.layout).requires_grad_(spec.requires_grad)
            made = Parameter(name, number, twin, given, [(given, ...)])
        else:
            blocks = spec.geometry(spec.shape, spec.dim, self.size)
            given = self.sharded(value, blocks, spec.requires_grad)
            made = Parameter(name, number, twin, given, pieces_of(given))
        self.parameters.append(made)
        return made

    def sharded(self, value: torch.Tensor, blocks: Sequence[Block], requires_grad: bool) -> Any:
        """A ShardedTensor of these blocks. No rank talks to another: each knows the whole plan."""
        metadata = [ShardMetadata(list(b.offsets), list(b.sizes), self.placement(b.rank)) for b in blocks]
        shards = [
            Shard(value[block.index].clone().requires_grad_(requires_grad), one)
            for block, one in zip(blocks, metadata, strict=True)
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
        """A plain cut in rank order, for the subject's own shard_parameter."""
        return ChunkShardingSpec(dim, [self.placement(rank) for rank in range(self.size)])

    def build(self, optimizer: Any, parameters: Sequence[Parameter], *args: Any, **kwargs: Any) -> Any:
        """The subject, over these parameters. What it raises is the law's affair."""
        return self.build_over(optimizer, {one.name: one.given for one in parameters}, *args, **kwargs)

    def build_over(self, optimizer: Any, named: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        built = self.subject.build(optimizer, named, *args, **kwargs)
        if not callable(getattr(built, "step", None)):
            raise BrokenAdapter(
                f"build of {self.subject.name} returned a {type(built).__name__}, which has no step(closure)"
            )
        return built

    def tool(self, name: str) -> Callable[..., Any]:
        """``named_parameters`` or ``shard_parameter``: what the subject has for modules, beside its optimizer."""
        found: Any = getattr(self.subject.build, name, None)
        if not callable(found):
            raise AttributeError(f"build of {self.subject.name} has no {name}(): see the contract's docstring")
        return found  # type: ignore[no-any-return]

    def give_gradients(self, parameters: Sequence[Parameter], step: int, own: bool = False) -> None:
        """New gradients for these, and none for the others; the reference gets the same, or the mean over ranks.

        ``own``: whole parameters get a gradient of each rank's own, where the subject claims to average them.
        """
        for one in self.parameters:
            one.twin.grad = None
            for tensor, _ in one.pieces:
                tensor.grad = None
        for one in parameters:
            if not one.whole or not (own and self.syncs):
                one.twin.grad = gradient(one.twin, self.data(one, step))
                for tensor, index in one.pieces:
                    tensor.grad = gradient(tensor, self.data(one, step)[index])
                continue
            # Coarse numbers: their sum is exact, so it is the same in whatever order the subject adds them.
            all_ranks = [coarse(self.data(one, step, rank + 1)) for rank in range(self.size)]
            total = all_ranks[0]
            for other in all_ranks[1:]:
                total = total + other
            one.twin.grad = total / self.size
            one.pieces[0][0].grad = all_ranks[self.rank].clone()

    def data(self, one: Parameter, step: int, rank: int = 0) -> torch.Tensor:
        """New data for each parameter at each step."""
        drawn = noise(one.twin.shape, one.twin.dtype, self.generator(step, one.number, rank, 2))
        return drawn.to(self.world.device)

    def closure(
        self, parameters: Sequence[Parameter], step: int, of_twins: bool = False
    ) -> Callable[[], torch.Tensor]:
        """What a user hands to step: it computes loss and gradients again, from the parameters as they are."""

        def evaluate() -> torch.Tensor:
            total = torch.zeros((), dtype=torch.float64)
            values = [one.twin.detach() for one in parameters] if of_twins else self.wholes(parameters)
            for one, value in zip(parameters, values, strict=True):
                data = self.data(one, step)
                # Neither quadratic nor equally curved: what goes another way does not come to the same end.
                curve = 0.1 + 3.0 * data * data
                total = total + (value * data + 0.5 * curve * value**2 + 0.1 * value**4).sum().to(torch.float64)
                slope = data + curve * value + 0.4 * value**3
                for tensor, index in [(one.twin, ...)] if of_twins else one.pieces:
                    tensor.grad = slope[index].clone()
            return total

        return evaluate

    def wholes(self, parameters: Sequence[Parameter]) -> list[torch.Tensor]:
        """Every parameter put together from all ranks. They meet for it: one that went another way is found."""
        mine = [[(_bounds(index), tensor.tolist()) for tensor, index in one.pieces] for one in parameters]
        heard = [json.loads(text) for text in self.meet("an evaluation of the closure", json.dumps(mine))]
        made = []
        for number, one in enumerate(parameters):
            value = torch.zeros_like(one.twin, requires_grad=False)
            for rank in heard:
                for bounds, piece in rank[number]:
                    index = tuple(slice(*pair) for pair in bounds) if bounds else ...
                    value[index] = torch.tensor(piece, dtype=value.dtype, device=value.device).view_as(value[index])
            made.append(value)
        return made

    def again(self) -> list[Parameter]:
        """The same parameters as new objects, as a fresh process would load them."""
        self.parameters = [self._copied(one) for one in self.parameters]
        return self.parameters

    def _copied(self, one: Parameter) -> Parameter:
        if one.whole:
            given = one.given.detach().clone().requires_grad_(one.given.requires_grad)
            return Parameter(one.name, one.number, one.twin, given, [(given, ...)])
        shards = [
            Shard(shard.tensor.detach().clone().requires_grad_(shard.tensor.requires_grad), shard.metadata)
            for shard in one.given.local_shards()
        ]
        given = ShardedTensor._init_from_local_shards_and_global_metadata(shards, one.given.metadata())
        return Parameter(one.name, one.number, one.twin, given, pieces_of(given))

    def adopt(self, name: str, given: Any, twin: torch.Tensor) -> Parameter:
        """A parameter that the subject's own tools have made of a module's."""
        made = Parameter(name, len(self.parameters), twin, given, pieces_of(given))
        self.parameters.append(made)
        return made

    def comparison(self, tolerance: Tolerance = EXACT) -> Comparison:
        """Bit for bit: the same kernels run on the same values."""
        comparison = Comparison(tolerance, self.subject.bound)
        comparison.start(self._pairs(1))
        return comparison

    def compare(self, comparison: Comparison, step: int) -> None:
        """This rank's tensors with their slices of the reference."""
        comparison.step(step, self._pairs(0), self._pairs(1))

    def _pairs(self, which: int) -> dict[str, torch.Tensor]:
        found = {name: pair[which] for one in self.parameters for name, pair in one.values().items()}
        # Every rank watches the whole reference move: it may hold no shard, or an empty one.
        found |= {f"{one.name} of the reference": one.twin for one in self.parameters}
        return {name: value.detach() for name, value in found.items()}

    def meet(self, what: str, text: str = "") -> list[str]:
        """Every rank's text, once all ranks are here. Ranks that came to different places break a law."""
        self._met += 1
        point = f"{what} ({self._met})"
        met = self.world._meet(point, "", text)
        if met.missing or set(met.points) != {point}:
            self.parted = True
            where = "; ".join(f"rank {rank}: {one or 'ended'}" for rank, one in enumerate(met.points))
            raise Deviation(f"the ranks went different ways: {where}")
        return met.texts

    @contextlib.contextmanager
    def may_part(self) -> Iterator[None]:
        """Where one rank may fail while the others wait for it in a collective.

        It ends its test without meeting them, and the harness ends them, since they wait for a rank that has ended.
        """
        try:
            yield
        except Deviation:
            self.parted = True
            raise

    def conclude(self, trouble: Exception | None) -> None:
        """One end for all ranks: a deviation on one is one on all."""
        if self.parted:  # the others have heard of it, or have ended
            return
        self._met = -1
        found = trouble.packed() if isinstance(trouble, Deviation) else ""
        for rank, packed in enumerate(self.meet("the end of the case", found)):
            if packed:
                raise Deviation.unpacked(packed, f"on rank {rank}: ")


@contextlib.contextmanager
def arena(subject: Subject, point: Point) -> Iterator[Arena]:
    """On every rank, in the default group; at the end all ranks come to one outcome."""
    inside = Arena(subject, point, current_world())
    trouble: Exception | None = None
    with warnings.catch_warnings():
        # ShardedTensor is deprecated wherever it is touched; of a tied parameter torch warns, and steps it twice.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "optimizer contains a parameter group with duplicate")
        try:
            yield inside
        except Exception as error:
            trouble = error
        if trouble is None:
            inside.conclude(None)
            return
        with contextlib.suppress(Deviation):
            inside.conclude(trouble)
        raise trouble


# --- values ------------------------------------------------------------------------------------------


def pieces_of(given: Any) -> list[tuple[torch.Tensor, Any]]:
    """This rank's tensors of a parameter, each with its index into the whole."""
    if not isinstance(given, ShardedTensor):
        return [(given, ...)]
    found = []
    for shard in given.local_shards():
        starts = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
        found.append((shard.tensor, tuple(slice(start, start + size) for start, size in starts)))
    return found


def _bounds(index: Any) -> list[tuple[int, int]]:
    return [] if index is ... else [(one.start, one.stop) for one in index]


def laid_out(value: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in memory of another kind."""
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
    """It depends on the data and on the parameter, element by element."""
    return data + value * 0.5


def coarse(value: torch.Tensor) -> torch.Tensor:
    """Rounded to multiples of 1/64."""
    return (value * 64).round() / 64 if not value.is_complex() else value
