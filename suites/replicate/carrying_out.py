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
from everyrank.suites.arena.groups import error_of
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check, same
from everyrank.suites.compare.reference import SEED
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.grammar import Rejected
from everyrank.suites.generate.player import Player
from everyrank.suites.replicate import grammar as g
from everyrank.suites.replicate.arena import unsynced
from everyrank.suites.replicate.drawn_alone import fail, train_unevenly
from everyrank.suites.replicate.drawn_model import batch, buffer_values, loss, make
from everyrank.suites.replicate.drawn_objects import ReplicateObjects
from torch import nn


class ReplicatePlayer(Player[g.Draw, ReplicateObjects]):
    """What each action of a draw does, on each rank."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        super().__init__(draw, ReplicateObjects(subject, draw))
        self.arena = self.objects.arena
        self.saved: Any = None
        """The states saved last, and whether the module's is that of the module inside of the wrapper."""

    # --- actions -------------------------------------------------------------------------------------

    def _backward(self, action: g.Backward) -> None:
        objects = self.objects
        skips = [action.skips if rank in action.skipped_by else () for rank in range(objects.size)]
        for time in range(action.times):
            parts = [batch(objects.number, time, rank, rank in action.rowless) for rank in range(objects.size)]
            objects.send_buffers()
            objects.train_twins(parts, skips)
            if action.synced:
                objects.average()
            rows, targets = parts[objects.rank]
            with self._acting(), contextlib.ExitStack() as stack:
                for replica in [] if action.synced else objects.replicas:
                    stack.enter_context(unsynced(replica))
                loss(objects.ours(rows, skips=skips[objects.rank]), targets).backward()
        objects.equal = True

    @contextlib.contextmanager
    def _acting(self) -> Iterator[None]:
        """Let the subject act. It may refuse to go on once a parameter was replaced."""
        try:
            with subject_acts():
                yield
        except Deviation as deviation:
            if self.objects.replaced:
                raise Rejected(str(deviation)) from deviation
            raise

    def _step(self, action: g.Step) -> None:
        for optimizer in self.objects.optimizers:
            optimizer.step()

    def _clear(self, action: g.Clear) -> None:
        for _, model in self.objects.models:
            model.zero_grad(set_to_none=action.set_to_none)

    def _give(self, action: g.Give) -> None:
        for rank, model in self.objects.models:
            named = self.objects.named(model)
            for index in action.to:
                parameter = named[self.draw.params[index].name]
                value = 1 + index + (rank if action.own else 0)
                parameter.grad = torch.full_like(parameter, value)

    def _freeze(self, action: g.Freeze) -> None:
        self.objects.frozen ^= {action.param}
        for _, model in self.objects.models:
            parameter = self.objects.named(model)[self.draw.params[action.param].name]
            parameter.grad = None
            parameter.requires_grad_(not action.frozen)

    def _replace(self, action: g.Replace) -> None:
        self.objects.replaced = True
        for _, model in self.objects.models:
            path, _, last = self.draw.params[action.param].name.rpartition(".")
            part = self._part(model, path)
            old = part.get_parameter(last)
            part.register_parameter(last, nn.Parameter(old.detach().clone(), old.requires_grad))
        self.objects.optimize()

    def _part(self, model: nn.Module, path: str) -> nn.Module:
        for name in filter(None, path.split(".")):
            model = self.arena.inside(model.get_submodule(name))
        return model

    def _setrate(self, action: g.SetRate) -> None:
        for optimizer in self.objects.optimizers:
            optimizer.param_groups[0]["lr"] = action.lr

    def _addgroup(self, action: g.AddGroup) -> None:
        objects = self.objects
        start = objects.groups[-1][1]
        end = min(start + action.count, len(self.draw.params))
        objects.groups.append((start, end, action.lr))
        for (_, model), optimizer in zip(objects.models, objects.optimizers, strict=True):
            optimizer.add_param_group({"params": objects.handed(model, start, end), "lr": action.lr})
        self.saved = None

    def _setbuffers(self, action: g.SetBuffers) -> None:
        for rank, model in self.objects.models:
            for name, buffer in list(model.named_buffers()):
                value = buffer_values(buffer, self.objects.number, rank)
                if action.reassigned:
                    setattr(model, name, value)
                else:
                    buffer.copy_(value)

    def _evaluate(self, action: g.Evaluate) -> None:
        objects = self.objects
        objects.send_buffers()
        rows, _ = batch(objects.number, 0, objects.rank, rowless=False)
        with torch.no_grad(), self._acting():
            out = objects.ours.eval()(rows)
        with torch.no_grad():
            same(out, objects.twin.eval()(rows), "what the module returned in eval")
        objects.ours.train()
        objects.twin.train()
        objects.equal = True

    def _save(self, action: g.Save) -> None:
        objects = self.objects
        with subject_acts():
            state = copy.deepcopy((objects.inside if action.inside else objects.ours).state_dict())
        wanted = objects.twin.state_dict()
        check(list(state) == list(wanted), f"the keys of the state dict are {list(state)} instead of {list(wanted)}")
        for name, value in wanted.items():
            same(state[name], value, f"{name} in the state dict")
        states = [optimizer.state_dict() for optimizer in objects.optimizers]
        self.saved = copy.deepcopy((state, [twin.state_dict() for twin in objects.twins], states)), action.inside

    def _load(self, action: g.Load) -> None:
        if self.saved is None:
            return
        objects = self.objects
        (state, states, kept), inside = copy.deepcopy(self.saved)
        if action.fresh:
            groups = objects.groups
            objects.begin(SEED + 50)
            objects.groups = groups
            objects.optimize()
        with subject_acts():
            (objects.inside if inside else objects.ours).load_state_dict(state)
        for twin, twin_state in zip(objects.twins, states, strict=True):
            twin.load_state_dict(twin_state)
        for optimizer, optimizer_state in zip(objects.optimizers, kept, strict=True):
            optimizer.load_state_dict(optimizer_state)

    def _wrongdevice(self, action: g.WrongDevice) -> None:
        error = error_of(lambda: self.arena.build(make(self.draw, SEED), device_id="cpu"))
        check(isinstance(error, (RuntimeError, TypeError, ValueError)), f"device_id='cpu' raised {error!r}")
        check("device_id" in str(error), f"the error does not name device_id: {error}")

    def _uneven(self, action: g.Uneven) -> None:
        train_unevenly(self.arena, self.draw, action, self.objects.number)

    def _fail(self, action: g.Fail) -> None:
        fail(self.arena, self.draw, action, self.objects.number)
