"""Carry out a draw of ``rpc-optimizer``: each action on the subject, and on torch.optim in the driver's process."""

from __future__ import annotations

import gc
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.arena.surface import use_once
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.player import Player
from everyrank.suites.rpc_optimizer import drawn_optimizers as o
from everyrank.suites.rpc_optimizer import grammar as g
from everyrank.suites.rpc_optimizer import sabotaging as s
from everyrank.suites.rpc_optimizer.arena import Parameter, error_of, eventually
from everyrank.suites.rpc_optimizer.besides import PARTS, RpcPair
from everyrank.suites.rpc_optimizer.drawn_objects import RpcObjects
from everyrank.suites.rpc_optimizer.laws.errors import each_under_its_name, non_leaf
from everyrank.suites.rpc_optimizer.planted import WORDS, arm, make_step, step_while_held


class RpcPlayer(Player[g.Draw, RpcObjects]):
    """What each action of a draw does. On the driver only."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        super().__init__(draw, RpcObjects(subject, draw))
        self.arena = self.objects.arena

    # --- steps ----------------------------------------------------------------------------------------

    def _step(self, action: g.Step) -> None:
        for _ in range(action.times):
            with dist_autograd.context() as context_id:
                gradients: s.Gradients = {}
                for numbers in action.backwards:
                    gradients |= self.objects.backward(context_id, numbers, action.again)
                for by in action.by:
                    self.objects.reference_step(by, gradients)
                    with subject_acts():
                        self.objects.ours[by].step(context_id)

    def _backward(self, context_id: int) -> s.Gradients:
        """Run a backward through all parameters that are trained."""
        return self.objects.backward(context_id, self.objects.trained)

    def _beside(self, action: g.Beside) -> None:
        with dist_autograd.context() as older:
            first = self.objects.backward(older, action.older)
            with s.context_beside(lambda newer: self.objects.backward(newer, action.newer)) as (newer, second):
                steps = [(action.by[0], older, first), (action.by[1], newer, second)]
                for by, context, gradients in reversed(steps) if action.newer_first else steps:
                    self.objects.reference_step(by, gradients)
                    with subject_acts():
                        self.objects.ours[by].step(context)

    def _together(self, action: g.Together) -> None:
        optimizers = [self.draw.optimizers[by] for by in action.by]
        (owner,) = {param.owner for given in optimizers for param in self.objects.some(given.params)}
        ours = [self.objects.ours[by] for by in action.by]
        made = s.steps_together(self.arena, owner, ours, self._backward)
        for by, gradients in zip(action.by, made, strict=True):
            self.objects.reference_step(by, gradients)

    def _another(self, action: g.Another) -> None:
        self.objects.add(action.optimizer)
        self._step(g.Step((tuple(self.objects.trained),), (len(self.objects.ours) - 1,), action.times))
        self.objects.ours.pop()
        self.objects.reference.pop()

    # --- refusals and errors --------------------------------------------------------------------------

    def _refused(self, action: g.Refused) -> None:
        with dist_autograd.context() as context_id:
            self._backward(context_id)
        wrong = context_id if action.context == "closed" else context_id + 12345
        error_of(lambda: self.objects.ours[action.by].step(wrong), f"step with {action.context} context id {wrong}")

    def _invalid(self, action: g.Invalid) -> None:
        found = row(action.optimizer)
        parameters = self.objects.parameters[:1]
        kwargs: dict[str, Any] = {"lr": 0.1}
        wanted: type[Exception] = ValueError
        if action.name == "empty-list":
            parameters = []
        elif action.name == "non-leaf":
            param = self.objects.some(self.objects.trained)[0]
            rref = rpc.remote(param.name, non_leaf, args=(param.rref,))
            parameters = [Parameter(param.owner, param.twin, rref)]
        else:
            invalid = next(invalid for invalid in found.invalid if invalid.name == action.name)
            kwargs, wanted = invalid.make(), invalid.error
        error = error_of(lambda: self.arena.build(found.optimizer, parameters, **kwargs), action.name)
        kind = type(error).__name__
        check(isinstance(error, wanted), f"{action.name} raises {kind}, not {wanted.__name__}: {error}")

    def _sabotage(self, action: g.Sabotage) -> None:
        used = self.objects.some(self.objects.trained)
        ours, step = self.objects.ours[action.by], self.objects.next_data()
        label = f"a step that fails on {list(action.failing)}"
        for owner in action.failing:
            self.arena.on(owner, arm, "unpicklable" if action.foreign else WORDS[owner])
        if action.slow is None:
            raised = [error_of(lambda: make_step(self.arena, ours, used, step), label)]
        else:
            raised = step_while_held(self.arena, ours, used, step, action.slow)
        self.objects.clear()
        pairs = zip(used, self.arena.inputs(used, step), strict=True)
        losses = [s.loss_of(param.twin, (data, False)) for param, data in pairs if param.owner not in action.failing]
        if losses:
            torch.stack(losses).sum().backward()
        self.objects.reference[action.by].step()
        if not action.failing:
            check(not raised, f"a step in which an owner waits raised {raised}")
            return
        check(bool(raised), f"{label} did not raise")
        _check_error(action, raised[0])

    def _failbuild(self, action: g.FailBuild) -> None:
        name = f"worker{action.failing}"
        build = self.arena.build
        error = error_of(
            lambda: build(s.Unbuildable, self.objects.some(action.params), at_construction=(name,)),
            f"a constructor that fails on {name}",
        )
        check(isinstance(error, ValueError), f"the error is a {type(error).__name__}, not a ValueError")
        check("cannot be built" in str(error), f"the error's text does not contain the cause: {error}")
        check(name in str(error), f"the error's text does not name {name}: {error}")
        error.__traceback__ = None
        del error
        self._check_gone("Unbuildable", "an optimizer that was half built still lives on")

    # --- features besides the step --------------------------------------------------------------------

    def _use(self, action: g.Use) -> None:
        pair = self._pair(action.by)
        used = [PARTS[name](pair) for name in action.parts]
        used = [part for part in used if not use_once(part)]
        for _ in range(2):
            self._step(g.Step((tuple(self.objects.trained),), (action.by,)))
            used = [part for part in used if not use_once(part)]
            self.objects.ours[action.by] = pair.ours

    def _pair(self, by: int) -> RpcPair:
        """Return the optimizer and its reference, for the parts besides the step."""
        given = self.draw.optimizers[by]
        gradients: s.Gradients = {}

        def backward(context_id: int) -> torch.Tensor:
            gradients.clear()
            gradients.update(self._backward(context_id))
            return self.objects.loss

        def step_copy(other: Any) -> None:
            with dist_autograd.context() as context_id:
                self._backward(context_id)
                other.step(context_id)

        # Without defaults that are tensors: a tensor that was sent over RPC is another object.
        return RpcPair(
            self.objects.ours[by],
            self.objects.reference[by],
            step_copy,
            {name: value for name, value in o.moved(given).items() if not torch.is_tensor(value)},
            fresh=lambda: self.objects.build_subject(given, other_rate=True),
            backward=backward,
            reference_step=lambda: self.objects.reference_step(by, gradients),
        )

    def _renew(self, action: g.Renew) -> None:
        self.objects.ours.clear()
        self.objects.reference.clear()
        self._check_gone("Counted", "an optimizer that was dropped still lives on")
        self.objects.build()

    def _check_gone(self, kind: str, problem: str) -> None:
        """Check that no optimizer of this kind still exists on any owner of the draw."""
        for owner in sorted({param.owner for param in self.draw.params}):

            def gone(owner: int = owner) -> bool:
                if not self.arena.on(owner, s.alive_of, kind):
                    return True
                gc.collect()  # only now: nothing else here takes as long
                return False

            check(eventually(gone), f"{problem} worker{owner}")


def _check_error(action: g.Sabotage, error: Exception) -> None:
    """Check that the error of a sabotaged step names each worker that failed, with its own cause."""
    text = str(error)
    if action.foreign:
        check("step sabotaged" in text, f"the text of the error was lost: {type(error).__name__}: {text}")
        return
    check(isinstance(error, ValueError), f"the error is a {type(error).__name__}, not a ValueError")
    for owner in action.failing:
        check(f"worker{owner}" in text, f"the error does not name worker{owner}: {text}")
        check(WORDS[owner] in text, f"the error does not say what went wrong on worker{owner}: {text}")
    swapped = len(action.failing) > 1 and not each_under_its_name(text, action.failing)
    check(not swapped, f"an error stands under another worker's name: {text}")
