"""Carry out a draw of ``sharded-optimizer``: each action on the subject, and on the whole reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from everyrank.fixtures import failing
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import EXACT, Tolerance, check
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.player import Player, reference_acts
from everyrank.suites.sharded_optimizer import drawn_surface
from everyrank.suites.sharded_optimizer import grammar as g
from everyrank.suites.sharded_optimizer.drawn_closure import Evaluations
from everyrank.suites.sharded_optimizer.drawn_objects import ShardedObjects
from everyrank.suites.sharded_optimizer.laws.errors import names_beside
from everyrank.suites.sharded_optimizer.laws.sparse_gradients import give_rows, give_rows_of_ranks

#: A norm is summed over ranks in another order than over whole tensors.
_NORM = {torch.float64: Tolerance(relative=1e-12), torch.float32: Tolerance(relative=1e-5)}

#: Fresh objects start with another learning rate than the state that they load.
_OTHER_RATE = 0.5

#: A learning rate that torch.optim refuses.
_REFUSED = -17.5


class ShardedPlayer(Player[g.Draw, ShardedObjects]):
    """What each action of a draw does, on each rank."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        super().__init__(draw, ShardedObjects(subject, draw))
        self.arena = self.objects.arena
        self.saved: tuple[Any, Any] | None = None
        """The states of the subject and of the reference that were saved last."""

    # --- training ------------------------------------------------------------------------------------

    def _give(self, action: g.Give) -> None:
        number, parameters = self.objects.number, self.objects.parameters
        self.arena.give_gradients([parameters[index] for index in action.to], number, action.own)
        for looked_up in action.rows:
            table = parameters[looked_up.param]
            if len(looked_up.ranks) > 1 and self.arena.syncs:
                give_rows_of_ranks(self.arena, table, number, looked_up.ranks)
            else:
                give_rows(self.arena, table, number, looked_up.ranks[0])

    def _step(self, action: g.Step) -> None:
        if action.closure:
            self._step_with_closure()
            return
        with reference_acts():
            self.objects.reference.step()
        with subject_acts():
            self.objects.ours.step()

    def _step_with_closure(self) -> None:
        evaluations = Evaluations(self.arena, self.objects.trained, self.objects.number)
        with reference_acts():
            expected = self.objects.reference.step(evaluations.of_reference())
        loss = evaluations.let_step(self.objects.ours)
        check(loss is not None, "step returned None instead of the closure's loss")
        check(
            float(loss) == float(expected), f"step returned {float(loss)}, not the closure's loss {float(expected)}"
        )

    def _clear(self, action: g.Clear) -> None:
        arguments = {} if action.set_to_none is None else {"set_to_none": action.set_to_none}
        self.objects.reference.zero_grad(**arguments)
        with subject_acts():
            self.objects.ours.zero_grad(**arguments)
        self.objects.compare_gradients(EXACT)

    def _clip(self, action: g.Clip) -> None:
        objects = self.objects
        tolerance = _NORM[objects.dtype]
        twins = [param.twin for param in objects.parameters[: objects.groups[-1][1]]]
        with reference_acts():  # which has no infinity norm of a tensor without elements
            expected = float(torch.nn.utils.clip_grad_norm_(twins, action.most, action.norm))
        with subject_acts():
            total = objects.ours.clip_grad_norm_(action.most, action.norm)
        check(torch.is_tensor(total) or isinstance(total, float), f"the norm is {total!r}, which is no number")
        off = abs(float(total) - expected)
        check(off <= tolerance.relative * abs(expected), f"the norm is {float(total)} instead of {expected}")
        objects.compare_gradients(tolerance)
        for param in objects.parameters:  # go on from the reference's gradients
            for tensor, index in param.pieces:
                tensor.grad = None if param.twin.grad is None else param.twin.grad[index].clone()

    # --- the optimizer's groups and options ----------------------------------------------------------

    def _addgroup(self, action: g.AddGroup) -> None:
        objects = self.objects
        start = objects.groups[-1][1]
        end = min(start + action.count, len(objects.parameters))
        options = {"lr": action.lr}
        if action.weight_decay is not None:
            options["weight_decay"] = action.weight_decay
        twins = [param.twin for param in objects.parameters[start:end]]
        with reference_acts():
            objects.reference.add_param_group({"params": twins, **options})
        objects.groups.append((start, end, options))
        with subject_acts():
            objects.ours.add_param_group({"params": objects.named(start, end), **options})
        self.saved = None

    def _setoption(self, action: g.SetOption) -> None:
        own, count = getattr(self.objects.ours, "param_groups", None), len(self.objects.groups)
        if own is None:  # the contract does not ask for it
            return
        check(len(own) == count, f"param_groups has {len(own)} groups instead of {count}")
        for group in (self.objects.reference.param_groups[action.group], own[action.group]):
            if torch.is_tensor(group[action.name]):
                group[action.name].fill_(action.value)
            else:
                group[action.name] = action.value

    def _freeze(self, action: g.Freeze) -> None:
        param = self.objects.parameters[action.param]
        for tensor in (param.twin, *(tensor for tensor, _ in param.pieces)):
            tensor.grad = None
        for whole in (param.twin, param.given):  # a ShardedTensor does so with all of its shards
            whole.requires_grad_(not action.frozen)

    # --- states, names and other features ------------------------------------------------------------

    def _save(self, action: g.Save) -> None:
        with subject_acts():
            state = copy.deepcopy(self.objects.ours.state_dict())
        self.saved = state, _snapshot(self.objects.reference)

    def _load(self, action: g.Load) -> None:
        if self.saved is None:
            return
        state, kept = self.saved
        if action.fresh:
            self.objects.renew()
            self.objects.build({**self.objects.variant.make(), "lr": _OTHER_RATE}, action.reverse)
        with subject_acts():
            self.objects.ours.load_state_dict(copy.deepcopy(state))
        _restore(self.objects.reference, kept)

    def _names(self, action: g.Names) -> None:
        self.objects.named_parameters(prefix=action.prefix, recurse=action.recurse)

    def _use(self, action: g.Use) -> None:
        objects = self.objects
        step = g.Step()
        drawn_surface.use(action.part, objects.ours, objects.reference, objects.arguments, lambda: self._step(step))

    # --- errors --------------------------------------------------------------------------------------

    def _fail(self, action: g.Fail) -> None:
        """Check that an error on one rank is raised on all, with the rank and the cause. Then begin again."""
        if action.during != "closure":
            self.objects.renew()
            self.arena.give_gradients(self.objects.trained, self.objects.number)
        cause = str(_REFUSED) if action.during == "construction" else failing.MESSAGE
        _check_error(self._error_of(action), action.rank, cause, self.arena.rank)
        self.objects.start_from_reference()  # a rank that did not fail may have stepped
        self.objects.renew()
        self.objects.begin()
        self.saved = None

    def _error_of(self, action: g.Fail) -> str:
        """Let one rank fail; return the text of the error that is raised here, or an empty text."""
        try:
            self._let_fail(action)
        except Deviation:
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _let_fail(self, action: g.Fail) -> None:
        fails = self.arena.rank == action.rank
        if action.during == "closure":
            self.objects.ours.step(_failing_closure(fails))
            return
        named = self.objects.named(0, len(self.objects.parameters))
        if action.during == "construction":
            self.arena.build_over(torch.optim.SGD, named, lr=_REFUSED if fails else 0.1)
        else:
            self.arena.build_over(failing.FailsOnStep, named, only=action.rank).step()


def _check_error(text: str, rank: int, cause: str, own_rank: int) -> None:
    """Check the text of the error that is raised on ``own_rank`` because ``rank`` failed."""
    check(bool(text), f"nothing was raised, although rank {rank} failed")
    check(f"rank {rank}" in text, f"the error does not name rank {rank}: {text}")
    check(cause in text, f"the error does not hold its cause: {text}")
    near = names_beside(cause, rank, text, own_rank)
    check(near, f"the error names another rank than rank {rank} beside the cause: {text}")


def _failing_closure(fails: bool) -> Callable[[], torch.Tensor]:
    def evaluate() -> torch.Tensor:
        if fails:
            raise failing.InjectedError(failing.MESSAGE)
        return torch.ones(())

    return evaluate


def _snapshot(optimizer: Any) -> Any:
    """Return a copy of state and options, as they are: load_state_dict of torch.optim would cast the state."""
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    state = [
        [dict(optimizer.state[tensor]) if tensor in optimizer.state else None for tensor in group["params"]]
        for group in optimizer.param_groups
    ]
    return copy.deepcopy((options, state))


def _restore(optimizer: Any, kept: Any) -> None:
    for group, options, states in zip(optimizer.param_groups, *copy.deepcopy(kept), strict=True):
        group.update(options)
        for tensor, state in zip(group["params"], states, strict=True):
            optimizer.state.pop(tensor, None)
            if state is not None:
                optimizer.state[tensor] = state
