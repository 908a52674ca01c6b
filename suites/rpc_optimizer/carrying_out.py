"""Carrying out a draw of ``rpc-optimizer``: each action on the subject, and on torch.optim in the driver's process.

A call to an owner costs more than what it does there. So parameters are made, and looked at, in one call an owner.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.fixtures.optimizers import Row, row
from everyrank.suites.arena.subject_errors import noise, subject_acts
from everyrank.suites.arena.surface import use_once
from everyrank.suites.compare.comparison import EXACT, Comparison, check
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.grammar import Rejected
from everyrank.suites.rpc_optimizer import drawn_optimizers as o
from everyrank.suites.rpc_optimizer import grammar as g
from everyrank.suites.rpc_optimizer import sabotaging as s
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter, error_of, eventually
from everyrank.suites.rpc_optimizer.besides import PARTS, RpcPair
from everyrank.suites.rpc_optimizer.laws.errors import each_under_its_name, non_leaf
from everyrank.suites.rpc_optimizer.planted import WORDS, arm, make_step, step_while_held

Gradients = dict[torch.Tensor, torch.Tensor]


class Player:
    """The objects of one draw, and what each action does to them. On the driver only."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        self.draw = draw
        self.arena = Arena(subject, Point("generated", draw.size), draw.size, 7)
        self.dtype: torch.dtype = getattr(torch, draw.dtype)
        self.data = 0  # how often new data were made
        self.loss = torch.zeros(())  # of the last backward
        self.ours: list[Any] = []
        self.reference: list[Any] = []

    def play(self) -> Iterator[None]:
        """Make the objects, then carry out one action after the other; yields after each."""
        self._make_parameters()
        self.globals = self._look()[1]
        self._build()
        self._compare()
        yield
        for action in self.draw.actions:
            getattr(self, f"_{type(action).__name__.lower()}")(action)
            self._compare()
            yield

    @property
    def parameters(self) -> list[Parameter]:
        return self.arena.parameters

    def _some(self, numbers: Sequence[int]) -> list[Parameter]:
        return [self.parameters[number] for number in numbers]

    # --- objects -------------------------------------------------------------------------------------

    def _make_parameters(self) -> None:
        rrefs: dict[int, Any] = {}
        twins: dict[int, torch.Tensor] = {}
        numbered = list(enumerate(self.draw.params))
        for number, param in numbered:
            generator = torch.Generator().manual_seed(number)
            value = noise(param.shape, self.dtype, generator)
            made = twins.get(number if param.same_as is None else param.same_as)
            twins[number] = s.laid_out(value, param.layout, param.frozen) if made is None else made
        for owner in sorted({param.owner for _, param in numbered}):
            mine = [(number, param) for number, param in numbered if param.owner == owner]
            plans = [(number, twins[number].detach(), p.layout, p.frozen, p.same_as) for number, p in mine]
            given = self.arena.on(owner, s.make_all, plans)
            rrefs |= {number: rref for (number, _), rref in zip(mine, given, strict=True)}
        for number, param in numbered:
            self.parameters.append(Parameter(param.owner, twins[number], rrefs[number]))

    def _build(self) -> None:
        """Build all optimizers of the draw, and their references."""
        for each in self.draw.optimizers:
            self._add(each)

    def _add(self, given: g.Optimizer) -> None:
        """Build one optimizer and its reference."""
        with _reference_acts():
            self.reference.append(o.in_plain_torch(given, [one.twin for one in self._some(given.of)]))
        self.ours.append(self._build_one(given))

    def _build_one(self, given: g.Optimizer, other_rate: bool = False) -> Any:
        """Build the subject; with ``other_rate``, one whose learning rate is not that of the draw."""
        kind, args, kwargs = o.arguments(given, other_rate)  # fresh: a tensor must not be shared
        with subject_acts():
            return self.arena.build(kind, self._some(given.of), *args, **kwargs)

    # --- comparing -----------------------------------------------------------------------------------

    def _look(self) -> tuple[dict[int, s.Seen], dict[str, str]]:
        """What the owners have, by the parameter's number; and what no optimizer may change, by its name."""
        owners: dict[int, list[int]] = {0: []}
        for number, param in enumerate(self.draw.params):
            owners.setdefault(param.owner, []).append(number)
        asked = {
            owner: rpc.rpc_async(f"worker{owner}", s.look, args=([one.rref for one in self._some(numbers)],))
            for owner, numbers in owners.items()
        }
        seen: dict[int, s.Seen] = {}
        state: dict[str, str] = {}
        for owner, future in asked.items():
            found, now = future.wait()
            seen |= dict(zip(owners[owner], found, strict=True))
            state |= {f"{what} of worker{owner}": value for what, value in now.items()}
        return seen, state | {"the driver's warnings filters": s.filters()}

    def _compare(self) -> None:
        """All parameters, bit for bit; the same kernels run on the same values."""
        seen, state = self._look()
        changed = [name for name, value in state.items() if value != self.globals[name]]
        self.globals = state
        comparison = Comparison(EXACT, self.arena.subject.bound)
        names = [f"parameter {number} on {one.name}" for number, one in enumerate(self.parameters)]
        ours = {name: seen[number].value for number, name in enumerate(names)}
        comparison.step(0, ours, {name: one.twin for name, one in zip(names, self.parameters, strict=True)})
        if comparison.differences:
            raise Deviation(str(comparison.differences[0]).partition(", ")[2])
        given = {id(one.twin) for each in self.draw.optimizers for one in self._some(each.of)}
        for number, one in enumerate(self.parameters):
            untouched = id(one.twin) in given or not seen[number].has_grad
            check(untouched, f"the .grad of {names[number]} was set, which no optimizer was given")
        check(not changed, f"the optimizer changed {', '.join(changed)}")

    # --- gradients -----------------------------------------------------------------------------------

    def _backward(self, context_id: int, numbers: Sequence[int], again: bool = False) -> Gradients:
        """A backward through these parameters, in a context of this thread. Returns the reference's gradients.

        The frozen ones of their owners are in the loss too.
        """
        if not numbers:
            return {}
        owners = {self.draw.params[number].owner for number in numbers}
        frozen = [number for number, one in enumerate(self.draw.params) if one.frozen and one.owner in owners]
        numbers = [*numbers, *frozen]
        used = self._some(numbers)
        sparse = [self.draw.params[number].sparse for number in numbers]
        inputs: list[Any] = list(zip(self.arena.inputs(used, self._fresh()), sparse, strict=True))
        self._clear()
        with _reference_acts():
            pairs = zip(used, inputs, strict=True)
            expected = torch.stack([s.loss_of(one.twin, given) for one, given in pairs]).sum()
            for last in (False, True) if again else (True,):
                expected.backward(retain_graph=not last)
        total = self.arena.remote_loss(used, inputs, s.loss_of)
        self.loss = total.detach()
        for last in (False, True) if again else (True,):
            dist_autograd.backward(context_id, [total], retain_graph=not last)
        return {one.twin: one.twin.grad for one in self.parameters if one.twin.grad is not None}

    @property
    def _trained(self) -> list[int]:
        return [number for number, param in enumerate(self.draw.params) if not param.frozen]

    def _fresh(self) -> int:
        """A number that no data was made of yet."""
        self.data += 1
        return self.data

    def _clear(self) -> None:
        for one in self.parameters:
            one.twin.grad = None

    def _reference_step(self, by: int, gradients: Gradients) -> None:
        for one in self.parameters:
            one.twin.grad = gradients.get(one.twin)
        with _reference_acts():
            self.reference[by].step()

    # --- actions -------------------------------------------------------------------------------------

    def _step(self, action: g.Step) -> None:
        for _ in range(action.times):
            with dist_autograd.context() as context_id:
                gradients: Gradients = {}
                for numbers in action.backwards:
                    gradients |= self._backward(context_id, numbers, action.again)
                for by in action.by:
                    self._reference_step(by, gradients)
                    with subject_acts():
                        self.ours[by].step(context_id)

    def _beside(self, action: g.Beside) -> None:
        with dist_autograd.context() as older:
            of_older = self._backward(older, action.older)
            with s.context_beside(lambda context_id: self._backward(context_id, action.newer)) as (newer, of_newer):
                steps = [(action.by[0], older, of_older), (action.by[1], newer, of_newer)]
                for by, context, gradients in reversed(steps) if action.newer_first else steps:
                    self._reference_step(by, gradients)
                    with subject_acts():
                        self.ours[by].step(context)

    def _refused(self, action: g.Refused) -> None:
        with dist_autograd.context() as context_id:
            self._backward(context_id, self._trained)
        wrong = context_id if action.context == "closed" else context_id + 12345
        error_of(lambda: self.ours[action.by].step(wrong), f"step with {action.context} context id {wrong}")

    def _invalid(self, action: g.Invalid) -> None:
        found: Row = row(action.optimizer)
        parameters = self.parameters[:1]
        kwargs: dict[str, Any] = {"lr": 0.1}
        wanted: type[Exception] = ValueError
        if action.name == "empty-list":
            parameters = []
        elif action.name == "non-leaf":
            one = self._some(self._trained)[0]
            rref = rpc.remote(one.name, non_leaf, args=(one.rref,))
            parameters = [Parameter(one.owner, one.twin, rref)]
        else:
            invalid = next(each for each in found.invalid if each.name == action.name)
            kwargs, wanted = invalid.make(), invalid.error
        error = error_of(lambda: self.arena.build(found.optimizer, parameters, **kwargs), action.name)
        kind = type(error).__name__
        check(isinstance(error, wanted), f"{action.name} raises {kind}, not {wanted.__name__}: {error}")

    def _sabotage(self, action: g.Sabotage) -> None:
        used = self._some(self._trained)
        ours, step, what = self.ours[action.by], self._fresh(), f"a step that fails on {list(action.failing)}"
        for owner in action.failing:
            self.arena.on(owner, arm, "unpicklable" if action.foreign else WORDS[owner])
        if action.slow is None:
            raised = [error_of(lambda: make_step(self.arena, ours, used, step), what)]
        else:
            raised = step_while_held(self.arena, ours, used, step, action.slow)
        self._clear()
        pairs = zip(used, self.arena.inputs(used, step), strict=True)
        losses = [s.loss_of(one.twin, (data, False)) for one, data in pairs if one.owner not in action.failing]
        if losses:
            torch.stack(losses).sum().backward()
        self.reference[action.by].step()
        if not action.failing:
            check(not raised, f"a step in which an owner waits raised {raised}")
            return
        check(bool(raised), f"{what} did not raise")
        self._check_error(action, raised[0])

    def _check_error(self, action: g.Sabotage, error: Exception) -> None:
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

    def _failbuild(self, action: g.FailBuild) -> None:
        name = f"worker{action.failing}"
        build = self.arena.build
        error = error_of(
            lambda: build(s.Unbuildable, self._some(action.of), at_construction=(name,)),
            f"a constructor that fails on {name}",
        )
        check(isinstance(error, ValueError), f"the error is a {type(error).__name__}, not a ValueError")
        check("cannot be built" in str(error), f"the error's text does not contain the cause: {error}")
        check(name in str(error), f"the error's text does not name {name}: {error}")
        error.__traceback__ = None
        del error
        self._check_gone("Unbuildable", "an optimizer that was half built still lives on")

    def _together(self, action: g.Together) -> None:
        (owner,) = {one.owner for by in action.by for one in self._some(self.draw.optimizers[by].of)}
        steps = [self.ours[by] for by in action.by]
        made = s.steps_together(
            self.arena, owner, steps, lambda context_id: self._backward(context_id, self._trained)
        )
        for by, gradients in zip(action.by, made, strict=True):
            self._reference_step(by, gradients)

    def _another(self, action: g.Another) -> None:
        self._add(action.optimizer)
        self._step(g.Step((tuple(self._trained),), (len(self.ours) - 1,), action.times))
        self.ours.pop()
        self.reference.pop()

    def _use(self, action: g.Use) -> None:
        pair = self._pair(action.by)
        used = [PARTS[name](pair) for name in action.parts]
        used = [part for part in used if not use_once(part)]
        for _ in range(2):
            self._step(g.Step((tuple(self._trained),), (action.by,)))
            used = [part for part in used if not use_once(part)]
            self.ours[action.by] = pair.ours

    def _pair(self, by: int) -> RpcPair:
        """The optimizer, its reference, and how the parts besides the step use them."""
        given = self.draw.optimizers[by]
        gradients: Gradients = {}

        def backward(context_id: int) -> torch.Tensor:
            gradients.clear()
            gradients.update(self._backward(context_id, self._trained))
            return self.loss

        def step_copy(other: Any) -> None:
            with dist_autograd.context() as context_id:
                self._backward(context_id, self._trained)
                other.step(context_id)

        # Defaults that are tensors are left out: after a journey over RPC, one is no longer the other.
        return RpcPair(
            self.ours[by],
            self.reference[by],
            step_copy,
            {name: value for name, value in o.moved(given).items() if not torch.is_tensor(value)},
            fresh=lambda: self._build_one(given, other_rate=True),
            backward=backward,
            reference_step=lambda: self._reference_step(by, gradients),
        )

    def _renew(self, action: g.Renew) -> None:
        self.ours.clear()
        self.reference.clear()
        self._check_gone("Counted", "an optimizer that was dropped still lives on")
        self._build()

    def _check_gone(self, kind: str, what: str) -> None:
        """Whether no optimizer of this kind lives on any owner of the draw."""
        for owner in sorted({param.owner for param in self.draw.params}):

            def gone(owner: int = owner) -> bool:
                if not self.arena.on(owner, s.alive_of, kind):
                    return True
                gc.collect()  # only now: it takes longer than all else here
                return False

            check(eventually(gone), f"{what} worker{owner}")


@contextlib.contextmanager
def _reference_acts() -> Iterator[None]:
    """Where the reference raises, the draw is given up: it says nothing about the subject."""
    try:
        yield
    except Exception as error:
        raise Rejected(str(error)) from error
