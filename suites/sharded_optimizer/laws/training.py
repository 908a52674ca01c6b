"""The laws of ``sharded-optimizer`` about values: what a step does to the shards."""

from __future__ import annotations

from collections.abc import Sequence

from everyrank.suites.arena.subject_errors import plainly, stayed
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import SGD, Arena, Parameter
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.geometry import GEOMETRIES
from everyrank.suites.sharded_optimizer.law_player import playing
from everyrank.suites.sharded_optimizer.model import Param
from everyrank.suites.sharded_optimizer.points import cut, whole

law = CONTRACT.law


def plainest(arena: Arena) -> None:
    """Build over a sharded parameter and a whole one, and do one step of SGD."""
    parameters = arena.make([Param("first", (2 * arena.size, 2), geometry="chunked"), Param("second", (2,))])
    with plainly("build, with SGD over two parameters,"):
        ours = arena.build(SGD, parameters, lr=0.1)
    _check_devices(arena, parameters)
    arena.give_gradients(parameters, 1)
    with plainly("a step of SGD"):
        ours.step()
    _check_devices(arena, parameters)


def _check_devices(arena: Arena, parameters: Sequence[Parameter]) -> None:
    for param in parameters:
        for tensor, _ in param.pieces:
            stayed(param.name, tensor.device, arena.world.device)


@law("parity.shard", points.shards)
def shard(arena: Arena, point: points.ShardPoint) -> None:
    """After each of 10 steps with new data, each rank's shard equals that slice of the reference, bit for bit."""
    params = points.uneven(point.dim, table="sparse" in point.row.needs or point.repeated)
    with playing(arena, point, params, point.dtype) as player:
        for number in range(1, 11):
            if point.repeated:
                player.train(rows=((-1, number, 0, -1, 0),))
            else:
                player.follow(1)


@law("parity.geometry", points.geometries)
def geometry(arena: Arena, point: points.GeometryPoint) -> None:
    """Each shard gets its own update, however a tensor is cut, and whichever ranks hold its shards, or none."""
    with playing(arena, point, points.cuts(point.geometry, point.dim)) as player:
        player.follow(3)


@law("parity.whole", points.beside, groups=("AVERAGED",))
def wholes(arena: Arena, point: points.WholePoint) -> None:
    """Whole parameters, in any memory layout, are stepped with the mean of all ranks' gradients, alike on every rank.

    If the subject declares `caller-syncs-whole`, the caller has averaged the gradients.
    """
    with playing(arena, point, point.specs, point.dtype) as player:
        player.follow(3, own=True)


@law("parity.subclass", points.subclasses)
def subclass(arena: Arena, point: points.SubclassPoint) -> None:
    """A subclass, with or without its own step(), steps each shard as it steps that slice of the whole tensor."""
    params = [cut(7, 3), whole(4, 3), cut(5)]
    with playing(arena, point, params, subclass="signed" if point.signed else "unchanged") as player:
        player.follow(3)


@law("parity.whole-tensor", points.whole_tensors)
def whole_tensor(arena: Arena, point: points.WholeTensorPoint) -> None:
    """An optimizer that needs the whole tensor, or a subclass of one, steps shards as it steps the whole tensor."""
    with playing(arena, point, point.specs, subclass="unchanged" if point.subclass else "") as player:
        player.follow(2 if "closure" in point.row.needs else 4)  # it is evaluated several times in each step


_UNUSED: dict[points.Unused, tuple[int, ...]] = {"first": (0,), "middle": (1,), "last": (2,)}


@law("grad.none", points.nones)
def none(arena: Arena, point: points.NonePoint) -> None:
    """A None gradient is not zero: its parameter does not change, not even by decay; the others are updated."""
    with playing(arena, point, [cut(6, 3), whole(6, 3), cut(6, 3)]) as player:
        for all_unused in ((), (0, 1, 2), ()):
            player.train(missing=_UNUSED.get(point.unused, all_unused))


@law("grad.zero", points.zeros)
def zero(arena: Arena, point: points.ZeroPoint) -> None:
    """zero_grad makes gradients None, or zeros if set_to_none is False; a gradient that was None stays None."""
    with playing(arena, point, [cut(7, 3), whole(4, 3), cut(5), whole(2)]) as player:
        player.give(missing=(3,))
        player.clear(**point.arguments)


@law("closure", points.closures)
def closure(arena: Arena, point: points.SpecPoint) -> None:
    """step(closure) calls the closure as often as torch.optim does, uses its gradients, and returns its loss."""
    with playing(arena, point, point.specs) as player:
        player.step_with_closure()
        player.step_with_closure()


@law("clip", points.clips)
def clip(arena: Arena, point: points.ClipPoint) -> None:
    """clip_grad_norm_ takes the norm over the whole tensors, each element once, and scales every gradient by it."""
    by = GEOMETRIES[point.geometry][0]
    with playing(arena, point, [cut(7, 3, by=by), whole(4, 3), cut(5, 2, by=by), cut(2, 3, by=by)]) as player:
        player.give(missing=(3,))
        player.clip(point.most, point.norm)
