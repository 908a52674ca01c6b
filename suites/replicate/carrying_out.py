"""Carrying out a draw of ``replicate``: each action on the subject, and on one plain model for each rank.

The reference is in one process: every rank has the models of all of them, without any communication, and takes the
mean of their gradients where a backward is synced. That is the gradient of the whole batch, since the loss counts
each row the same. After each comparison the subject goes on from the reference's gradients, so that steps are exact.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from everyrank import current_world
from everyrank.suites.acts import subject_acts
from everyrank.suites.compare import check, same
from everyrank.suites.contract import Point
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.grammar import Rejected
from everyrank.suites.reference import SEED, mean
from everyrank.suites.replicate import grammar as g
from everyrank.suites.replicate.arena import Arena, dense, error_of, unsynced
from everyrank.suites.replicate.drawn_alone import fail, train_unevenly
from everyrank.suites.replicate.drawn_model import Part, Rows, batch, buffer_values, loss, make
from everyrank.suites.subject import Subject
from torch import nn

#: How far a mean may be off, of the largest gradient that it is of: another order of a sum.
_OFF = {torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-6}

_OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.1),
}

_OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "small-buckets": {"bucket_cap_mb": 0.0001},
    "bucket-view": {"gradient_as_bucket_view": True},
    "static-graph": {"static_graph": True},
    "device": {"device_id": torch.device("cpu")},
    "own-buffers": {"broadcast_buffers": False},
}

#: Options that a subject may refuse; it is built without them then.
_OFFERED = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")


class Player:
    """The objects of one draw on this rank, and what each action does to them."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        world = current_world()
        self.draw, self.rank, self.size = draw, world.rank, world.size
        self.arena = Arena(subject, Point("generated", world.size), world.rank, world.size)
        self.local_buffers = self.arena.local_buffers or draw.option == "own-buffers"
        self.equal = draw.equal_at_once
        self.frozen = {number for number, param in enumerate(draw.params) if param.frozen}
        self.replaced = False
        self.scales: dict[str, float] = {}
        """The largest gradient that each mean of the last backward is of."""
        self.saved: Any = None
        self.number = 0

    def play(self) -> Iterator[None]:
        """Make the objects, then carry out one action after the other; yields after each."""
        self._begin(SEED)
        self._compare()
        yield
        for self.number, action in enumerate(self.draw.actions, 1):  # noqa: B020
            getattr(self, f"_{type(action).__name__.lower()}")(action)
            self._compare()
            yield

    # --- objects -------------------------------------------------------------------------------------

    def _begin(self, seed: int) -> None:
        """A model on each rank, with values of its own; the references have what replicas are to have."""
        self.twins = [self._model(seed, rank) for rank in range(self.size)]
        for twin in self.twins[1:]:
            for name, parameter in twin.named_parameters():
                if not self._ignored(name):
                    parameter.data.copy_(self.twins[0].get_parameter(name).data)
        self.touched: list[set[str]] = [set() for _ in range(self.size)]
        self._send_buffers()
        self.replicas: list[nn.Module] = []
        self.ours = self._built(self._model(seed, self.rank))
        self.groups: list[tuple[int, int, float | None]] = [(0, self.draw.first, None)]
        self._optimize()

    def _send_buffers(self) -> None:
        """What a forward does to the buffers of all ranks, where they are not left alone."""
        if not self.local_buffers:
            for twin in self.twins[1:]:
                for name, buffer in twin.named_buffers():
                    buffer.copy_(self.twins[0].get_buffer(name))

    def _model(self, seed: int, rank: int) -> Part:
        model = make(self.draw, seed + rank)
        for number, param in enumerate(self.draw.params):
            model.get_parameter(param.name).requires_grad_(number not in self.frozen)
        for buffer in model.buffers():
            buffer.copy_(buffer_values(buffer, self.number, rank))
        return model

    def _built(self, model: Part) -> nn.Module:
        if self.draw.apart:
            for name in model.parts:
                inside = model.get_submodule(name)
                model.add_module(name, self._build(inside))
            return model
        ignored = {"ignored_modules": [model.get_submodule(self.draw.ignored)]} if self.draw.ignored else {}
        return self._build(model, **ignored)

    def _build(self, module: nn.Module, **given: Any) -> nn.Module:
        options = {**given, **_OPTIONS[self.draw.option]}
        if self.draw.option != "static-graph" and any(
            isinstance(action, g.Backward) and action.skips for action in self.draw.actions
        ):
            options["find_unused_parameters"] = True
        with subject_acts():
            while True:
                try:
                    built = self.arena.build(module, **options)
                    break
                except TypeError as error:
                    refused = [name for name in options if name in _OFFERED and name in str(error)]
                    if not refused:
                        raise
                    del options[refused[0]]
        if self.draw.option == "own-buffers":  # of the start, only those that are sent are spoken of
            for name, buffer in self.arena.inside(built).named_buffers():
                buffer.copy_(self.twins[self.rank].get_buffer(name))
        self.replicas.append(built)
        return built

    def _optimize(self) -> None:
        self.optimizers = [self._optimizer(twin) for twin in self.twins]
        self.optimizer = self._optimizer(self._inside)

    def _optimizer(self, model: nn.Module) -> Any:
        groups = [
            {"params": self._handed(model, start, end), **({} if rate is None else {"lr": rate})}
            for start, end, rate in self.groups
        ]
        return _OPTIMIZERS[self.draw.optimizer](groups)

    def _handed(self, model: nn.Module, start: int, end: int) -> list[nn.Parameter]:
        named = self._named(model)
        drawn = [param.name for param in self.draw.params]
        layers = [parameter for name, parameter in named.items() if ".first." in f".{name}"] if start == 0 else []
        return [*(named[name] for name in drawn[start:end]), *layers]

    @property
    def _inside(self) -> nn.Module:
        return self.arena.inside(self.ours)

    def _named(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Its parameters by the names that the draw gives them, wherever torch lists them first."""
        found = dict(self.arena.wrappers.parameters(model))
        for param in self.draw.params:
            if param.name not in found and param.also in found:
                found[param.name] = found.pop(param.also)
        return found

    def _ignored(self, name: str) -> bool:
        return bool(self.draw.ignored) and name.startswith(f"{self.draw.ignored}.")

    # --- comparing -----------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Names, values and whether they are trained; gradients, from which the subject then goes on; buffers."""
        if not self.equal:
            return
        twin, ours = self._named(self.twins[self.rank]), self._named(self._inside)
        check(set(ours) == set(twin), f"the parameters are {sorted(ours)} instead of {sorted(twin)}")
        for name, expected in twin.items():
            parameter = ours[name]
            same(parameter.detach(), expected.detach(), name)
            frozen = "requires" if expected.requires_grad else "does not require"
            check(parameter.requires_grad == expected.requires_grad, f"{name} no longer {frozen} grad")
            self._compare_gradient(name, parameter, expected)
        buffers = dict(self._inside.named_buffers())
        for name, buffer in self.twins[self.rank].named_buffers():
            same(buffers[name], buffer, f"buffer {name}")

    def _compare_gradient(self, name: str, parameter: nn.Parameter, expected: nn.Parameter) -> None:
        have, want = ("None" if each.grad is None else "a gradient" for each in (parameter, expected))
        check(have == want, f"{name}.grad is {have} instead of {want}")
        if parameter.grad is None or expected.grad is None:
            return
        mine, wanted = dense(parameter.grad.detach()), dense(expected.grad)
        if not (mine.shape == wanted.shape and mine.dtype == wanted.dtype and self._close(name, mine, wanted)):
            same(mine, wanted, f"{name}.grad")
        if parameter.grad.is_sparse or expected.grad.is_sparse:
            parameter.grad = expected.grad.clone()
        else:
            parameter.grad.detach().copy_(wanted)

    def _close(self, name: str, mine: torch.Tensor, wanted: torch.Tensor) -> bool:
        if not wanted.numel():
            return True
        bound = self.arena.subject.bound
        allowed = max(_OFF[wanted.dtype], bound.relative if bound is not None else 0.0)
        off = float((mine - wanted).abs().max())
        return off <= allowed * max(self.scales.get(name, 0.0), float(wanted.abs().max()))

    # --- actions -------------------------------------------------------------------------------------

    def _backward(self, action: g.Backward) -> None:
        for time in range(action.times):
            parts = [batch(self.number, time, rank, rank in action.rowless) for rank in range(self.size)]
            skips = [action.skips if rank in action.skipped_by else () for rank in range(self.size)]
            self._send_buffers()
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
        """The mean of what all ranks have, where any of them has used the parameter since the last time."""
        self.scales = {}
        for name in set().union(*self.touched):
            parameters = [twin.get_parameter(name) for twin in self.twins]
            if self._ignored(name) or not parameters[0].requires_grad:
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
        """The subject acts. It may refuse to go on once a parameter was replaced."""
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
        for optimizer in (*self.optimizers, self.optimizer):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and parameter.grad.is_sparse:
                        parameter.grad = None  # which no zero_grad makes dense
        for model in (*self.twins, self._inside):
            model.zero_grad(set_to_none=action.set_to_none)

    def _give(self, action: g.Give) -> None:
        for rank, model in (*enumerate(self.twins), (self.rank, self._inside)):
            named = self._named(model)
            for index in action.to:
                parameter = named[self.draw.params[index].name]
                value = 1 + index + (rank if action.own else 0)
                parameter.grad = torch.full_like(parameter, value)

    def _freeze(self, action: g.Freeze) -> None:
        self.frozen ^= {action.param}
        for model in (*self.twins, self._inside):
            parameter = self._named(model)[self.draw.params[action.param].name]
            parameter.grad = None
            parameter.requires_grad_(not action.frozen)

    def _replace(self, action: g.Replace) -> None:
        self.replaced = True
        for model in (*self.twins, self._inside):
            path, _, last = self.draw.params[action.param].name.rpartition(".")
            part = self._part(model, path)
            old = part.get_parameter(last)
            part.register_parameter(last, nn.Parameter(old.detach().clone(), old.requires_grad))
        self._optimize()

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
        for model, optimizer in zip((*self.twins, self._inside), (*self.optimizers, self.optimizer), strict=True):
            optimizer.add_param_group({"params": self._handed(model, start, end), "lr": action.lr})
        self.saved = None

    def _setbuffers(self, action: g.SetBuffers) -> None:
        for rank, model in (*enumerate(self.twins), (self.rank, self._inside)):
            for name, buffer in list(model.named_buffers()):
                value = buffer_values(buffer, self.number, rank)
                if action.reassigned:
                    setattr(model, name, value)
                else:
                    buffer.copy_(value)

    def _evaluate(self, action: g.Evaluate) -> None:
        self._send_buffers()
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
            state = copy.deepcopy((self._inside if action.inside else self.ours).state_dict())
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
            self._begin(SEED + 50)
            self.groups = groups
            self._optimize()
        with subject_acts():
            (self._inside if inside else self.ours).load_state_dict(state)
        for twin, of_twin in zip(self.twins, states, strict=True):
            twin.load_state_dict(of_twin)
        for optimizer, of_optimizer in zip((*self.optimizers, self.optimizer), kept, strict=True):
            optimizer.load_state_dict(of_optimizer)

    def _wrongdevice(self, action: g.WrongDevice) -> None:
        error = error_of(lambda: self.arena.build(make(self.draw, SEED), device_id="cpu"))
        check(isinstance(error, (RuntimeError, TypeError, ValueError)), f"device_id='cpu' raised {error!r}")
        check("device_id" in str(error), f"the error does not tell of device_id: {error}")

    def _uneven(self, action: g.Uneven) -> None:
        train_unevenly(self.arena, self.draw, action, self.number)

    def _fail(self, action: g.Fail) -> None:
        fail(self.arena, self.draw, action, self.number)
