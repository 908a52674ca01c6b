"""The objects of a draw of ``rpc-optimizer``: make them, run backwards through them, and compare them.

A call to an owner takes longer than the work that it does there. So one call for each owner makes all its parameters,
and one reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites.arena.subject_errors import noise, subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison, check
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.player import DrawnObjects, reference_acts
from everyrank.suites.rpc_optimizer import drawn_optimizers as o
from everyrank.suites.rpc_optimizer import grammar as g
from everyrank.suites.rpc_optimizer import sabotaging as s
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter


class RpcObjects(DrawnObjects):
    """The parameters of one draw with twins on the driver, the subjects over them, and references over the twins."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        self.draw = draw
        self.arena = Arena(subject, Point("generated", draw.size), draw.size, 7)
        self.loss = torch.zeros(())
        """The loss of the last backward."""
        self.ours: list[Any] = []
        self.reference: list[Any] = []
        self._data = 0  # how often new data were made
        self._make_parameters()
        self._globals = self._look()[1]
        self.build()

    @property
    def parameters(self) -> list[Parameter]:
        return self.arena.parameters

    @property
    def trained(self) -> list[int]:
        return [number for number, param in enumerate(self.draw.params) if not param.frozen]

    def some(self, numbers: Sequence[int]) -> list[Parameter]:
        return [self.parameters[number] for number in numbers]

    # --- making --------------------------------------------------------------------------------------

    def _make_parameters(self) -> None:
        dtype: torch.dtype = getattr(torch, self.draw.dtype)
        rrefs: dict[int, Any] = {}
        twins: dict[int, torch.Tensor] = {}
        numbered = list(enumerate(self.draw.params))
        for number, param in numbered:
            value = noise(param.shape, dtype, torch.Generator().manual_seed(number))
            made = twins.get(number if param.same_as is None else param.same_as)
            twins[number] = s.laid_out(value, param.layout, param.frozen) if made is None else made
        for owner in sorted({param.owner for _, param in numbered}):
            mine = [(number, param) for number, param in numbered if param.owner == owner]
            plans = [(number, twins[number].detach(), p.layout, p.frozen, p.same_as) for number, p in mine]
            given = self.arena.on(owner, s.make_all, plans)
            rrefs |= {number: rref for (number, _), rref in zip(mine, given, strict=True)}
        for number, param in numbered:
            self.parameters.append(Parameter(param.owner, twins[number], rrefs[number]))
        self.arena.hold(self.arena.parameters)

    def build(self) -> None:
        """Build all optimizers of the draw, and their references."""
        for optimizer in self.draw.optimizers:
            self.add(optimizer)

    def add(self, optimizer: g.Optimizer) -> None:
        """Build one optimizer and its reference."""
        with reference_acts():
            twins = [param.twin for param in self.some(optimizer.params)]
            self.reference.append(o.in_plain_torch(optimizer, twins))
        self.ours.append(self.build_subject(optimizer))

    def build_subject(self, optimizer: g.Optimizer, other_rate: bool = False) -> Any:
        """Build the subject; with ``other_rate``, its learning rate differs from that of the draw."""
        kind, args, kwargs = o.arguments(optimizer, other_rate)  # fresh: a tensor must not be shared
        with subject_acts():
            return self.arena.build(kind, self.some(optimizer.params), *args, **kwargs)

    # --- comparing -----------------------------------------------------------------------------------

    def _look(self) -> tuple[dict[int, s.Seen], dict[str, str]]:
        """Return the parameters as their owners have them, by number, and the state that no optimizer may change."""
        owners: dict[int, list[int]] = {0: []}
        for number, param in enumerate(self.draw.params):
            owners.setdefault(param.owner, []).append(number)
        asked = {
            owner: rpc.rpc_async(f"worker{owner}", s.look, args=([param.rref for param in self.some(numbers)],))
            for owner, numbers in owners.items()
        }
        seen: dict[int, s.Seen] = {}
        state: dict[str, str] = {}
        for owner, future in asked.items():
            found, now = future.wait()
            seen |= dict(zip(owners[owner], found, strict=True))
            state |= {f"{name} of worker{owner}": value for name, value in now.items()}
        return seen, state | {"the driver's warnings filters": s.filters()}

    def compare(self) -> None:
        """Compare all parameters, bit for bit: the same kernels run on the same values."""
        seen, state = self._look()
        changed = [name for name, value in state.items() if value != self._globals[name]]
        self._globals = state
        comparison = Comparison(EXACT, self.arena.subject.bound)
        names = [f"parameter {number} on {param.name}" for number, param in enumerate(self.parameters)]
        ours = {name: seen[number].value for number, name in enumerate(names)}
        comparison.step(0, ours, {name: param.twin for name, param in zip(names, self.parameters, strict=True)})
        comparison.raise_first()
        given = {id(param.twin) for optimizer in self.draw.optimizers for param in self.some(optimizer.params)}
        for number, param in enumerate(self.parameters):
            untouched = id(param.twin) in given or not seen[number].has_grad
            check(untouched, f"the .grad of {names[number]} was set, which no optimizer was given")
        check(not changed, f"the optimizer changed {', '.join(changed)}")

    # --- gradients -----------------------------------------------------------------------------------

    def backward(self, context_id: int, numbers: Sequence[int], again: bool = False) -> s.Gradients:
        """Run a backward through these parameters, in a context of this thread. Return the reference's gradients.

        The frozen parameters of the same owners are in the loss too.
        """
        if not numbers:
            return {}
        owners = {self.draw.params[number].owner for number in numbers}
        frozen = [number for number, param in enumerate(self.draw.params) if param.frozen and param.owner in owners]
        numbers = [*numbers, *frozen]
        used = self.some(numbers)
        sparse = [self.draw.params[number].sparse for number in numbers]
        inputs: list[Any] = list(zip(self.arena.inputs(used, self.next_data()), sparse, strict=True))
        self.clear()
        with reference_acts():
            pairs = zip(used, inputs, strict=True)
            expected = torch.stack([s.loss_of(param.twin, given) for param, given in pairs]).sum()
            for last in (False, True) if again else (True,):
                expected.backward(retain_graph=not last)
        total = self.arena.remote_loss(used, inputs, s.loss_of)
        self.loss = total.detach()
        for last in (False, True) if again else (True,):
            dist_autograd.backward(context_id, [total], retain_graph=not last)
        return {param.twin: param.twin.grad for param in self.parameters if param.twin.grad is not None}

    def next_data(self) -> int:
        """Return a number from which no data were made yet."""
        self._data += 1
        return self._data

    def clear(self) -> None:
        """Clear the reference's gradients."""
        for param in self.parameters:
            param.twin.grad = None

    def reference_step(self, by: int, gradients: s.Gradients) -> None:
        for param in self.parameters:
            param.twin.grad = gradients.get(param.twin)
        with reference_acts():
            self.reference[by].step()
