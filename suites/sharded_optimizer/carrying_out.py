"""Carrying out a draw of ``sharded-optimizer``: each action on the subject and on the whole reference."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from everyrank import current_world
from everyrank.fixtures import failing
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Comparison, Tolerance, check
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.grammar import Rejected
from everyrank.suites.sharded_optimizer import drawn_surface
from everyrank.suites.sharded_optimizer import grammar as g
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, Spec
from everyrank.suites.sharded_optimizer.drawn_closure import Evaluations
from everyrank.suites.sharded_optimizer.geometry import Block, Geometry, along
from everyrank.suites.sharded_optimizer.laws.errors import names_beside
from everyrank.suites.sharded_optimizer.laws.sparse_gradients import give_rows, give_rows_of_ranks
from everyrank.suites.sharded_optimizer.laws.training import Signed, unchanged
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor

#: A norm is summed over ranks in another order than over whole tensors.
_NORM = {torch.float64: Tolerance(relative=1e-12), torch.float32: Tolerance(relative=1e-5)}

#: Fresh objects start with another learning rate than the state that they load.
_OTHER_RATE = 0.5

#: A learning rate that torch.optim refuses.
_REFUSED = -17.5


class Player:
    """The objects of one draw on this rank, and what each action does to them."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        world = current_world()
        self.subject, self.draw = subject, draw
        self.arena = Arena(subject, Point("generated", world.size), world)
        self.dtype: torch.dtype = getattr(torch, draw.dtype)
        self.row = row(draw.optimizer)
        self.variant = self.row.variant(draw.variant)
        self.optimizer: Any = self.row.optimizer
        if draw.subclass:
            self.optimizer = Signed if draw.subclass == "signed" else unchanged(self.optimizer)
        self.groups: list[tuple[int, int, dict[str, Any]]] = []
        """First and last parameter of each group, and the options that it was added with."""
        self.saved: tuple[Any, Any] | None = None
        self.number = 0
        self.built: Mapping[str, Any] = {}
        """The arguments with which the subject was built."""
        self.module: tuple[nn.Module, nn.Module] | None = None

    def play(self) -> Iterator[None]:
        """Make the objects, then carry out one action after the other; yields after each."""
        self._make_parameters()
        self._begin()
        self._compare()
        yield
        for self.number, action in enumerate(self.draw.actions, 1):  # noqa: B020
            getattr(self, f"_{type(action).__name__.lower()}")(action)
            self._compare()
            yield

    @property
    def parameters(self) -> list[Parameter]:
        return self.arena.parameters

    # --- objects -------------------------------------------------------------------------------------

    def _make_parameters(self) -> None:
        if self.draw.module:
            self._make_module()
            return
        for param in self.draw.params:
            made = self.arena.make([self._spec(param)], self.dtype)[0]
            made.name = param.name

    def _spec(self, param: g.Param) -> Spec:
        geometry = None if param.cut is None else _geometry(param.cut)
        return Spec(param.shape, geometry, param.dim, param.layout, not param.frozen)

    def _make_module(self) -> None:
        """The parameters in a module, cut by the subject's tool or standing there as they are; and an uncut twin."""
        ours, twin = nn.Module(), nn.Module()
        drawn = Arena(self.subject, self.arena.point, self.arena.world)
        for param in self.draw.params:
            plain = self._spec(param)
            made = drawn.make([Spec(param.shape, None, 0, param.layout) if param.tool else plain], self.dtype)[0]
            made.twin.requires_grad_(False)
            uncut = nn.Parameter(made.twin, requires_grad=not param.frozen)
            own = made.given
            if not isinstance(own, ShardedTensor):
                own = nn.Parameter(own.detach(), requires_grad=not param.frozen)
            for name in filter(None, (param.name, param.also)):
                _put(ours, name, own)
                _put(twin, name, uncut)
        with subject_acts():
            for param in self.draw.params:
                if param.tool:
                    self.arena.tool("shard_parameter")(ours, param.name, self.arena.spec(param.dim))
            found = list(self.arena.tool("named_parameters")(ours))
        self.module = ours, twin
        self._check_names(found, {})
        values = dict(found)
        twins = dict(twin.named_parameters())
        for param in self.draw.params:
            name = param.name if param.name in twins else param.also
            self.arena.adopt(name, values[name], twins[name])

    def _check_names(self, found: list[tuple[str, Any]], arguments: Mapping[str, Any]) -> None:
        assert self.module is not None
        listed = sorted(name for name, _ in found)
        wanted = sorted(name for name, _ in self.module[1].named_parameters(**arguments))
        check(listed == wanted, f"the named parameters are {listed}, those of the model {wanted}")

    def _begin(self) -> None:
        """Build the subject and the reference over the first parameters."""
        first = min(self.draw.first, len(self.parameters))
        self.groups = [(0, first, {})]
        with _reference_acts():
            self.reference = self.optimizer([one.twin for one in self.parameters[:first]], **self.variant.make())
        self.ours = self._build(self.variant.make())
        self.saved = None

    def _build(self, arguments: Mapping[str, Any], reverse: bool = False) -> Any:
        self.built = arguments
        (start, end, _), *others = self.groups
        with subject_acts():
            built = self.arena.build_over(self.optimizer, self._named(start, end, reverse), **arguments)
            for start, end, options in others:
                built.add_param_group({"params": self._named(start, end, reverse), **options})
        return built

    def _named(self, start: int, end: int, reverse: bool = False) -> dict[str, Any]:
        """What the subject is given: these parameters by name, a tied one by both of its names."""
        named = {}
        pairs = list(zip(self.draw.params[start:end], self.parameters[start:end], strict=True))
        for param, made in reversed(pairs) if reverse else pairs:
            named[made.name] = made.given
            if param.also and not self.draw.module:
                named[param.also] = made.given
        return named

    # --- comparing -----------------------------------------------------------------------------------

    def _compare(self) -> None:
        """All parameters, bit for bit; the same kernels run on the same values.

        A row's sparse gradients may be added up before or after they are applied, which rounds otherwise.
        """
        sparse = any(param.table for param in self.draw.params)
        comparison = Comparison(CLOSE_FP64 if sparse else EXACT, self.subject.bound)
        self.arena.compare(comparison, self.number)
        _raise_first(comparison)
        for one in self.parameters:
            for tensor, _ in one.pieces:
                frozen = "requires" if one.twin.requires_grad else "does not require"
                check(tensor.requires_grad == one.twin.requires_grad, f"{one.name} no longer {frozen} grad")

    def _compare_gradients(self, tolerance: Tolerance) -> None:
        comparison = Comparison(tolerance)
        for one in self.parameters:
            for tensor, index in one.pieces:
                wanted = None if one.twin.grad is None else one.twin.grad.to_dense()[index]
                have = "None" if tensor.grad is None else "a tensor"
                want = "None" if wanted is None else "a tensor"
                check(have == want, f"the gradient of {one.name} is {have} instead of {want}")
                if tensor.grad is not None and wanted is not None:
                    name = f"the gradient of {one.name}"
                    comparison.step(self.number, {name: tensor.grad.to_dense()}, {name: wanted})
        _raise_first(comparison)

    # --- actions -------------------------------------------------------------------------------------

    def _give(self, action: g.Give) -> None:
        given = [self.parameters[index] for index in action.to]
        self.arena.give_gradients(given, self.number, action.own)
        for looked_up in action.rows:
            table = self.parameters[looked_up.param]
            if len(looked_up.ranks) > 1 and self.arena.syncs:
                give_rows_of_ranks(self.arena, table, self.number, looked_up.ranks)
            else:
                give_rows(self.arena, table, self.number, looked_up.ranks[0])

    def _step(self, action: g.Step) -> None:
        if action.closure:
            self._step_with_closure()
            return
        with _reference_acts():
            self.reference.step()
        with subject_acts():
            self.ours.step()

    def _step_with_closure(self) -> None:
        trained = [one for one in self.parameters if one.twin.requires_grad]
        evaluations = Evaluations(self.arena, trained, self.number)
        with _reference_acts():
            expected = self.reference.step(evaluations.of_reference())
        loss = evaluations.let_step(self.ours)
        check(loss is not None, "step returned None instead of the closure's loss")
        check(
            float(loss) == float(expected), f"step returned {float(loss)}, not the closure's loss {float(expected)}"
        )

    def _clear(self, action: g.Clear) -> None:
        arguments = {} if action.set_to_none is None else {"set_to_none": action.set_to_none}
        self.reference.zero_grad(**arguments)
        with subject_acts():
            self.ours.zero_grad(**arguments)
        self._compare_gradients(EXACT)

    def _clip(self, action: g.Clip) -> None:
        tolerance = _NORM[self.dtype]
        twins = [one.twin for _, one in zip(range(self.groups[-1][1]), self.parameters, strict=False)]
        with _reference_acts():  # which has no infinity norm of a tensor without elements
            expected = float(torch.nn.utils.clip_grad_norm_(twins, action.most, action.norm))
        with subject_acts():
            total = self.ours.clip_grad_norm_(action.most, action.norm)
        check(torch.is_tensor(total) or isinstance(total, float), f"the norm is {total!r}, which is no number")
        off = abs(float(total) - expected)
        check(off <= tolerance.relative * abs(expected), f"the norm is {float(total)} instead of {expected}")
        self._compare_gradients(tolerance)
        for one in self.parameters:  # go on from the reference's
            for tensor, index in one.pieces:
                tensor.grad = None if one.twin.grad is None else one.twin.grad[index].clone()

    def _addgroup(self, action: g.AddGroup) -> None:
        start = self.groups[-1][1]
        end = min(start + action.count, len(self.parameters))
        options = {"lr": action.lr}
        if action.weight_decay is not None:
            options["weight_decay"] = action.weight_decay
        with _reference_acts():
            self.reference.add_param_group({"params": [one.twin for one in self.parameters[start:end]], **options})
        self.groups.append((start, end, options))
        with subject_acts():
            self.ours.add_param_group({"params": self._named(start, end), **options})
        self.saved = None

    def _setoption(self, action: g.SetOption) -> None:
        own = getattr(self.ours, "param_groups", None)
        if own is None:  # the contract does not ask for it
            return
        check(len(own) == len(self.groups), f"param_groups has {len(own)} groups instead of {len(self.groups)}")
        for group in (self.reference.param_groups[action.group], own[action.group]):
            if torch.is_tensor(group[action.name]):
                group[action.name].fill_(action.value)
            else:
                group[action.name] = action.value

    def _freeze(self, action: g.Freeze) -> None:
        one = self.parameters[action.param]
        for tensor in (one.twin, *(tensor for tensor, _ in one.pieces)):
            tensor.grad = None
        for whole in (one.twin, one.given):  # a ShardedTensor does so with all of its shards
            whole.requires_grad_(not action.frozen)

    def _save(self, action: g.Save) -> None:
        with subject_acts():
            state = copy.deepcopy(self.ours.state_dict())
        self.saved = state, _snapshot(self.reference)

    def _load(self, action: g.Load) -> None:
        if self.saved is None:
            return
        state, kept = self.saved
        if action.fresh:
            self._renew()
            self.ours = self._build({**self.variant.make(), "lr": _OTHER_RATE}, action.reverse)
        with subject_acts():
            self.ours.load_state_dict(copy.deepcopy(state))
        _restore(self.reference, kept)

    def _renew(self) -> None:
        """The same parameters as new objects without gradients, as a fresh process would have them."""
        self.arena.again()
        for one in self.parameters:
            one.twin.grad = None

    def _names(self, action: g.Names) -> None:
        assert self.module is not None
        arguments = {"prefix": action.prefix, "recurse": action.recurse}
        with subject_acts():
            found = list(self.arena.tool("named_parameters")(self.module[0], **arguments))
        self._check_names(found, arguments)

    def _use(self, action: g.Use) -> None:
        drawn_surface.use(action.part, self.ours, self.reference, self.built, lambda: self._step(g.Step()))

    def _fail(self, action: g.Fail) -> None:
        """An error on one rank is raised on all, with the rank and the cause in its text. Then begin again."""
        heard = ""
        if action.during != "closure":
            self._renew()
            self.arena.give_gradients([one for one in self.parameters if one.twin.requires_grad], self.number)
        try:
            self._let_fail(action)
        except Deviation:
            raise
        except Exception as error:
            heard = f"{type(error).__name__}: {error}"
        check(bool(heard), f"nothing was raised, although rank {action.rank} failed")
        check(f"rank {action.rank}" in heard, f"the error does not name rank {action.rank}: {heard}")
        cause = str(_REFUSED) if action.during == "construction" else failing.MESSAGE
        check(cause in heard, f"the error does not hold its cause: {heard}")
        near = names_beside(cause, action.rank, heard, self.arena.rank)
        check(near, f"the error names another rank than rank {action.rank} beside the cause: {heard}")
        with torch.no_grad():  # a rank that did not fail may have stepped: all start from the reference
            for one in self.parameters:
                for tensor, index in one.pieces:
                    tensor.copy_(one.twin[index])
        self._renew()
        self._begin()

    def _let_fail(self, action: g.Fail) -> None:
        if action.during == "closure":
            fails = self.arena.rank == action.rank
            self.ours.step(_failing_closure(fails))
            return
        named = self._named(0, len(self.parameters))
        if action.during == "construction":
            self.arena.build_over(torch.optim.SGD, named, lr=_REFUSED if self.arena.rank == action.rank else 0.1)
        else:
            self.arena.build_over(failing.FailsOnStep, named, only=action.rank).step()


def _failing_closure(fails: bool) -> Callable[[], torch.Tensor]:
    def evaluate() -> torch.Tensor:
        if fails:
            raise failing.InjectedError(failing.MESSAGE)
        return torch.ones(())

    return evaluate


@contextlib.contextmanager
def _reference_acts() -> Iterator[None]:
    """Where the reference raises, all ranks give the draw up: it says nothing about the subject."""
    try:
        yield
    except Exception as error:
        raise Rejected(str(error)) from error


def _raise_first(comparison: Comparison) -> None:
    if comparison.differences:
        raise Deviation(str(comparison.differences[0]).partition(", ")[2])


def _geometry(cut: tuple[tuple[int, int], ...]) -> Geometry:
    """A cut as it was drawn."""

    def blocks(shape: tuple[int, ...], dim: int, size: int) -> list[Block]:
        return along(shape, dim, [owner for owner, _ in cut], [length for _, length in cut])

    return blocks


def _put(module: nn.Module, name: str, value: Any) -> None:
    """Set a parameter, or a bare ShardedTensor, under a dotted name; modules on the way are made."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    setattr(module, last, value)


def _snapshot(optimizer: Any) -> Any:
    """A copy of state and options, as they are: load_state_dict of torch.optim would cast the state."""
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    state = [
        [
            copy.deepcopy(dict(optimizer.state[tensor])) if tensor in optimizer.state else None
            for tensor in group["params"]
        ]
        for group in optimizer.param_groups
    ]
    return copy.deepcopy(options), state


def _restore(optimizer: Any, kept: Any) -> None:
    for group, options, states in zip(optimizer.param_groups, *copy.deepcopy(kept), strict=True):
        group.update(options)
        for tensor, state in zip(group["params"], states, strict=True):
            optimizer.state.pop(tensor, None)
            if state is not None:
                optimizer.state[tensor] = state
