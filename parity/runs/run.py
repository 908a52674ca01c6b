"""The user's parallel training on this rank, compared with the plain model's values while it runs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.runs.activations import Activations, Parts, Seen
from everyrank.parity.runs.clip import clip_by_hand
from everyrank.parity.runs.plain import BUFFER, GRADIENT, LOSS, NORM, PARAMETER, START, Key, scale
from everyrank.parity.runs.shadow import Shadow
from everyrank.parity.setup import SEED, Setup, own_dtype, seed
from everyrank.parity.values.dye import Holdings, Share
from everyrank.parity.values.exact import drop_mixed_precision, running_in
from everyrank.parity.values.names import buffers, chunks_of, known_name, parameters
from everyrank.parity.values.parts import distance
from everyrank.parity.values.store import Store
from everyrank.parity.values.tree import gradient_of, local, parts
from everyrank.parity.values.watch import Clip, clips, inputs, outputs, steps
from torch import nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Parallel:
    """What parallelize has made of a fresh copy of the plain model on this rank."""

    made: Any
    modules: list[nn.Module]
    optimizer: Any


def parallelize(setup: Setup, dtype: torch.dtype, *, exact: bool, prepare: Callable[[nn.Module], None]) -> Parallel:
    """Call the user's parallelize on a fresh plain model."""
    model = setup.fresh()
    if exact or dtype != own_dtype(model):
        model = model.to(dtype)
    prepare(model)
    state = copy.deepcopy(model.state_dict()) if setup.load is not None else {}
    before = _looks(model)
    seed(SEED)
    with running_in(dtype if exact else torch.get_default_dtype(), exact):
        made = setup.parallelize(model)
        optimizer = None
        if isinstance(made, tuple) and len(made) == 2 and hasattr(made[1], "step"):
            made, optimizer = made
        modules = chunks_of(made)
        if setup.load is not None:
            setup.load(made, state)
        if exact:
            drop_mixed_precision(modules)
        if optimizer is None:
            optimizer = setup.optimizer([each for _, each in parameters(modules) if each.requires_grad])
    if setup.step is None and modules == [model] and _looks(model) == before:
        raise Unusable(
            "parallelize left the model as it is: nothing is cut, wrapped or hooked, so nothing reduces gradients. "
            "Return what it should train, or pass step=, which reduces them."
        )
    return Parallel(made, modules, optimizer)


def _looks(model: nn.Module) -> list[Any]:
    """Return what changes in a model that was made parallel in place."""
    return [
        (type(each), id(each), len(each._forward_hooks), len(each._forward_pre_hooks), len(each._backward_hooks))
        for each in model.modules()
    ] + [
        (id(each), tuple(each.shape), len(each._backward_hooks or ()), len(each._post_accumulate_grad_hooks or ()))
        for each in model.parameters()
    ]


class Rank:
    """One pass of the user's training on this rank."""

    def __init__(
        self,
        setup: Setup,
        store: Store,
        holdings: Holdings,
        dtype: torch.dtype,
        limit: Callable[[Key], float | None],
        known_parts: Parts,
        exact: bool,
        near: float | None,
        healed: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self.setup, self.store, self.holdings, self.dtype, self.exact = setup, store, holdings, dtype, exact
        self.limit = limit
        self._healed = healed
        self._activations = Activations(setup, store, near, limit, known_parts, healed)
        self.clipped: float | None = None
        self._by_key: dict[str, list[Share]] = {}
        for share in holdings.shares:
            self._by_key.setdefault(share.key, []).append(share)
        self.parallel = parallelize(setup, dtype, exact=exact, prepare=lambda model: None)
        self._shadow = None if exact else Shadow(setup.optimizer, self.parallel.modules)
        self.seen = Seen()
        if exact:
            self._widen_buffers()
        self._parameters(START)

    def _widen_buffers(self) -> None:
        """Give buffers that the user's code makes itself the plain model's values, if rounding alone is between them.

        The plain model made them in its own dtype and was widened whole; theirs may be as narrow as they were.
        """
        for module in self.parallel.modules:
            for path, owner in module.named_modules():
                for name, buffer in owner.named_buffers(recurse=False):
                    truth = self._truth_of_buffer(f"{path}.{name}" if path else name, START)
                    if truth is None or truth.shape != buffer.shape or isinstance(buffer, DTensor):
                        continue
                    if buffer.dtype == truth.dtype and torch.equal(buffer, truth):
                        continue  # It stays the one that wrappers know.
                    if distance(buffer, truth) <= 1e-6 * float(truth.abs().max() if truth.numel() else 0):
                        owner._buffers[name] = truth.clone()

    def _truth_of_buffer(self, name: str, step: int) -> torch.Tensor | None:
        found = known_name(name, self.setup.rename, self.store.notes["buffers"])
        return self.store.get((BUFFER, step, found)) if found is not None else None

    def start(self) -> Seen:
        """Return what the initialization is."""
        return self.seen

    def step(self, number: int, cut: Callable[[Any], Any]) -> Seen:
        """Run one step of the user's training."""
        self.seen = Seen()
        self._read = False
        self._late: dict[str, torch.Tensor] = {}
        batch = self.setup.whole_batch(number, self.dtype)
        seed(SEED + number)
        self._activations.begin(number, self.seen, batch)
        made, optimizer = self.parallel.made, self.parallel.optimizer
        with (
            running_in(self.dtype if self.exact else torch.get_default_dtype(), self.exact),
            outputs(self._activations.named(self.parallel.modules), self._activations.output),
            inputs(self.parallel.modules, self._activations.called),
            clips(lambda clip: self._clip(number, clip)),
            steps(optimizer, lambda: self._before_update(number)),
        ):
            if self.setup.step is not None:
                self._returned(self.setup.step(made, optimizer, batch))
            else:
                self._loop(number, cut(batch))
        if not self._read:
            raise Unusable(
                "step(model, optimizer, batch) did not call optimizer.step(): there is no update to compare."
            )
        self._clipped_late(number)
        self._parameters(number)
        for kind in (LOSS, NORM):
            if (kind, "") in self._healed:
                setattr(self.seen, kind, None)
        self._activations.end()
        return self.seen

    def _loop(self, number: int, batch: Any) -> None:
        """Train on a batch in microbatches, as a plain loop does."""
        made, optimizer, count = self.parallel.made, self.parallel.optimizer, self.setup.microbatches
        losses = []
        for part in parts(batch, count):
            loss = self.setup.loss(made, part) / count
            loss.backward()
            losses.append(loss.detach().reshape(()))
        if self.setup.clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(
                [each for _, each in parameters(self.parallel.modules)], self.setup.clip
            )
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            self.seen.norm = float(norm)
        optimizer.step()
        optimizer.zero_grad()
        self.seen.loss = float(local(torch.stack([local(loss) for loss in losses]).sum()))

    def _returned(self, returned: Any) -> None:
        """Take what the user's step returned: the loss, or the loss and the norm."""
        loss, norm = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        self.seen.loss = _number(loss)
        if norm is not None:
            self.seen.norm = _number(norm)

    def _clip(self, step: int, clip: Clip) -> None:
        self.clipped = clip.most
        self._gradients(step)
        if not hasattr(clip.norm, "full_tensor") and self.seen.norm is None:
            self.seen.norm = float(local(clip.norm))

    def _before_update(self, step: int) -> None:
        self._gradients(step)
        if self._shadow is not None:
            self._shadow.step()

    def _gradients(self, step: int) -> None:
        """Compare the gradients, once they are final: before a clip, or before the optimizer's step."""
        if self._read:
            return
        self._read = True
        values_by_key: dict[str, torch.Tensor] = {}
        for key, parameter in parameters(self.parallel.modules):
            if key not in self._by_key:
                continue
            absent = parameter.grad is None
            values_by_key[key] = torch.zeros_like(local(parameter.detach())) if absent else gradient_of(parameter)
        self.seen.own_norm = math.sqrt(
            sum(
                float(share.expected(truth).double().square().sum())
                for key in values_by_key
                for share in self._by_key[key]
                if (truth := self.store.get((GRADIENT, step, share.name))) is not None
            )
        )
        factor = 1.0
        if self.setup.clip is not None and self.clipped is None and self.setup.step is not None:
            by_hand = clip_by_hand(self.setup.clip, self.store, step, self._by_key, values_by_key, self.exact)
            factor, self.seen.norm = by_hand.factor, by_hand.norm
            if by_hand.norm is None:
                # Each rank may have clipped by another norm: by which, the user's step returns.
                self._late = {key: values.clone() for key, values in values_by_key.items()}
        for key, values in values_by_key.items():
            self._share(GRADIENT, step, key, values if factor == 1 else values / factor)

    def _clipped_late(self, step: int) -> None:
        """Compare gradients again that were clipped by hand, by the norm that the user's step has returned."""
        if not self._late or self.seen.norm is None or self.setup.clip is None:
            return
        factor = min(1.0, self.setup.clip / (self.seen.norm + 1e-6))
        for known in [known for known in self.seen.errors if known[0] == GRADIENT]:
            del self.seen.errors[known]
        self.seen.kept = {key: values for key, values in self.seen.kept.items() if key[0] != GRADIENT}
        for key, values in self._late.items():
            self._share(GRADIENT, step, key, values / factor)

    def _parameters(self, step: int) -> None:
        for key, parameter in parameters(self.parallel.modules):
            if key in self._by_key:
                values = local(parameter.detach())
                done = self._shadow is not None and step != START and self._shadow.agrees(key, values)
                self._share(PARAMETER, step, key, values, done)
        for name, buffer in buffers(self.parallel.modules):
            found = known_name(name, self.setup.rename, self.store.notes["buffers"])
            truth = self.store.get((BUFFER, step, found)) if found is not None else None
            if truth is not None and truth.shape == buffer.shape:
                self._buffer((BUFFER, step, found), local(buffer), truth)

    def _buffer(self, key: Key, mine: torch.Tensor, truth: torch.Tensor) -> None:
        error = distance(mine, truth) / scale(self.store, key)
        self.seen.note(key, error)
        allowed = self.limit(key)
        if allowed is not None and not error <= allowed:
            self.seen.kept[key] = mine.clone()

    def _share(self, kind: str, step: int, key: str, values: torch.Tensor, done: bool = False) -> None:
        """Compare the parts of the plain model that a tensor of this rank holds.

        ``done`` says that the plain optimizer does the same with the rank's gradients: then they decide.
        """
        for share in self._by_key[key]:
            if self.setup.skips(share.name):
                continue
            truth = self.store.get((kind, step, share.name))
            if truth is None:
                continue
            known = (kind, step, share.name)
            expected = share.expected(truth)
            if (kind, share.name) in self._healed:
                share.write(values, expected)
            mine = share.read(values)
            error = 0.0 if done else distance(mine, expected) / scale(self.store, known)
            self.seen.note(known, error)
            allowed = self.limit(known)
            if allowed is not None and not error <= allowed:
                own = (*known, key)
                self.seen.kept[own] = mine.clone()


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        value = value.detach()
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        if value.numel() != 1:
            raise Unusable(
                f"step returned a loss of shape {tuple(value.shape)}: return one number, or None on this rank."
            )
    return float(value)
