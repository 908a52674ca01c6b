"""Carry out a draw of ``replicate``: each action on the subject, and on one plain model for each rank.

The reference needs no communication: every process has the models of all ranks, and takes the mean of their gradients
if a backward is synced. That is the gradient of the whole batch, since the loss counts each row the same. After each
comparison the subject goes on from the reference's gradients, so steps are exact.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.compare.reference import SEED, mean
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.grammar import Rejected
from everyrank.suites.replicate import grammar as g
from everyrank.suites.replicate.arena import dense, error_of, unsynced
from everyrank.suites.replicate.drawn_alone import fail, train_unevenly
from everyrank.suites.replicate.drawn_model import Part, Rows, batch, buffer_values, loss, make
from everyrank.suites.replicate.drawn_objects import Objects
from torch import nn


class Player(Objects):
    """Carries out the actions of one draw on its objects, on this rank."""

    saved: Any = None
    """The states saved last, and whether the module's is that of the module inside of the wrapper."""

    def play(self) -> Iterator[None]:
        """Make the objects, then carry out one action after the other; yield after each."""
        self.begin(SEED)
        self.compare()
        yield
        for self.number, action in enumerate(self.draw.actions, 1):  # noqa: B020
            getattr(self, f"_{type(action).__name__.lower()}")(action)
            self.compare()
            yield

    # --- actions -------------------------------------------------------------------------------------

    def _backward(self, action: g.Backward) -> None:
        for time in range(action.times):
            parts = [batch(self.number, time, rank, rank in action.rowless) for rank in range(self.size)]
            skips = [action.skips if rank in action.skipped_by else () for rank in range(self.size)]
            self.send_buffers()
            for rank, twin in enumerate(self.twins):
                self._train_twin(rank, twin, parts[rank], skips[rank])
            if action.synced:
                self._average()
            rows, targets = parts[self.rank]
            with self._acting(), contextlib.ExitStack() as stack:
                for replica in [] if action.synced else self.replicas:
                    stack.enter_context(unsynced(replica))
                loss(self.ours(rows, skips=skips[self.rank]), targets).backward()
        self.equal = True

    def _train_twin(self, rank: int, twin: Part, part: tuple[Rows, torch.Tensor], skips: tuple[int, ...]) -> None:
        rows, targets = part
        before = {name: parameter.grad for name, parameter in twin.named_parameters()}
        for parameter in twin.parameters():
            parameter.grad = None
        loss(twin(rows, skips=skips), targets).backward()
        for name, parameter in twin.named_parameters():
            mine = parameter.grad
            if mine is not None:
                self.touched[rank].add(name)
                mine = mine.coalesce() if mine.is_sparse else mine
            earlier = before[name]
            parameter.grad = mine if earlier is None else earlier if mine is None else earlier + mine

    def _average(self) -> None:
        """Average the gradients of each parameter that any rank has used since the last time."""
        self.scales = {}
        for name in set().union(*self.touched):
            parameters = [twin.get_parameter(name) for twin in self.twins]
            if self.ignored(name) or not parameters[0].requires_grad:
                continue
            parts = [parameter.grad for parameter in parameters]
            sizes = [float(dense(part).abs().max()) for part in parts if part is not None and part.numel()]
            self.scales[name] = max(sizes, default=0.0)
            found = mean(parts)
            for parameter in parameters:
                parameter.grad = None if found is None else found.clone()
        self.touched = [set() for _ in range(self.size)]

    @contextlib.contextmanager
    def _acting(self) -> Iterator[None]:
        """Let the subject act. It may refuse to go on once a parameter was replaced."""
        try:
            with subject_acts():
                yield
        except Deviation as deviation:
            if self.replaced:
                raise Rejected(str(deviation)) from deviation
            raise

    def _step(self, action: g.Step) -> None:
        for optimizer in (*self.optimizers, self.optimizer):
            optimizer.step()

    def _clear(self, action: g.Clear) -> None:
        for model in (*self.twins, self.inside):
            model.zero_grad(set_to_none=action.set_to_none)

    def _give(self, action: g.Give) -> None:
        for rank, model in (*enumerate(self.twins), (self.rank, self.inside)):
            named = self.named(model)
            for index in action.to:
                parameter = named[self.draw.params[index].name]
                value = 1 + index + (rank if action.own else 0)
                parameter.grad = torch.full_like(parameter, value)

    def _freeze(self, action: g.Freeze) -> None:
        self.frozen ^= {action.param}
        for model in (*self.twins, self.inside):
            parameter = self.named(model)[self.draw.params[action.param].name]
            parameter.grad = None
            parameter.requires_grad_(not action.frozen)

    def _replace(self, action: g.Replace) -> None:
        self.replaced = True
        for model in (*self.twins, self.inside):
            path, _, last = self.draw.params[action.param].name.rpartition(".")
            part = self._part(model, path)
            old = part.get_parameter(last)
            part.register_parameter(last, nn.Parameter(old.detach().clone(), old.requires_grad))
        self.optimize()

    def _part(self, model: nn.Module, path: str) -> nn.Module:
        for name in filter(None, path.split(".")):
            model = self.arena.inside(model.get_submodule(name))
        return model

    def _setrate(self, action: g.SetRate) -> None:
        for optimizer in (*self.optimizers, self.optimizer):
            optimizer.param_groups[0]["lr"] = action.lr

    def _addgroup(self, action: g.AddGroup) -> None:
        start = self.groups[-1][1]
        end = min(start + action.count, len(self.draw.params))
        self.groups.append((start, end, action.lr))
        for model, optimizer in zip((*self.twins, self.inside), (*self.optimizers, self.optimizer), strict=True):
            optimizer.add_param_group({"params": self.handed(model, start, end), "lr": action.lr})
        self.saved = None

    def _setbuffers(self, action: g.SetBuffers) -> None:
        for rank, model in (*enumerate(self.twins), (self.rank, self.inside)):
            for name, buffer in list(model.named_buffers()):
                value = buffer_values(buffer, self.number, rank)
                if action.reassigned:
                    setattr(model, name, value)
                else:
                    buffer.copy_(value)

    def _evaluate(self, action: g.Evaluate) -> None:
        self.send_buffers()
        rows, _ = batch(self.number, 0, self.rank, rowless=False)
        twin = self.twins[self.rank].eval()
        with torch.no_grad(), self._acting():
            out = self.ours.eval()(rows)
        with torch.no_grad():
            same(out, twin(rows), "what the module returned in eval")
        self.ours.train()
        twin.train()
        self.equal = True

    def _save(self, action: g.Save) -> None:
        with subject_acts():
            state = copy.deepcopy((self.inside if action.inside else self.ours).state_dict())
        wanted = self.twins[self.rank].state_dict()
        check(list(state) == list(wanted), f"the keys of the state dict are {list(state)} instead of {list(wanted)}")
        for name, value in wanted.items():
            same(state[name], value, f"{name} in the state dict")
        states = [optimizer.state_dict() for optimizer in (*self.optimizers, self.optimizer)]
        self.saved = copy.deepcopy((state, [twin.state_dict() for twin in self.twins], states)), action.inside

    def _load(self, action: g.Load) -> None:
        if self.saved is None:
            return
        (state, states, kept), inside = copy.deepcopy(self.saved)
        if action.fresh:
            groups = self.groups
            self.begin(SEED + 50)
            self.groups = groups
            self.optimize()
        with subject_acts():
            (self.inside if inside else self.ours).load_state_dict(state)
        for twin, twin_state in zip(self.twins, states, strict=True):
            twin.load_state_dict(twin_state)
        for optimizer, optimizer_state in zip((*self.optimizers, self.optimizer), kept, strict=True):
            optimizer.load_state_dict(optimizer_state)

    def _wrongdevice(self, action: g.WrongDevice) -> None:
        error = error_of(lambda: self.arena.build(make(self.draw, SEED), device_id="cpu"))
        check(isinstance(error, (RuntimeError, TypeError, ValueError)), f"device_id='cpu' raised {error!r}")
        check("device_id" in str(error), f"the error does not name device_id: {error}")

    def _uneven(self, action: g.Uneven) -> None:
        train_unevenly(self.arena, self.draw, action, self.number)

    def _fail(self, action: g.Fail) -> None:
        fail(self.arena, self.draw, action, self.number)
