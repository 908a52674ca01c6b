"""The user's parallel training on this rank, compared with the plain model's values while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.run.activations import Activations, Parts, Seen
from everyrank.parity.run.assembled import Assembled
from everyrank.parity.run.claimed import Claimed, OutputClaim
from everyrank.parity.run.clip import own_norm
from everyrank.parity.run.factors import Convention
from everyrank.parity.run.plain import LOSS, NORM, START, Key, rates
from everyrank.parity.run.shadow import Shadow
from everyrank.parity.run.store import Store
from everyrank.parity.run.tensors import Tensors, widen_buffers
from everyrank.parity.setup.given import SEED, Setup, seed
from everyrank.parity.setup.models import Parallel, parallelize
from everyrank.parity.setup.ranks import Ranks
from everyrank.parity.setup.split import Cut
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.exact import running_in
from everyrank.parity.values.names import parameters
from everyrank.parity.values.tree import local, parts
from everyrank.parity.values.watch import Clip, Output, clamps, clips, inputs, outputs, steps


@dataclass(frozen=True)
class Trace:
    """What this rank keeps of a pass when its model has gone."""

    store: Store
    holdings: Holdings
    dtype: torch.dtype
    seen: Seen
    """The last step: values are kept where they are beyond a limit."""
    clipped: float | None
    """To which norm torch's function clipped."""
    clamped: float | None
    """To which value torch's function clipped."""
    epsilon: float | None
    """What a clip by hand adds to the norm."""
    claims: tuple[OutputClaim, ...] = ()
    """What DTensors claim of outputs in the first step."""


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
        unseen: set[str] | None = None,
        convention: Convention | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._setup, self._store, self._holdings, self._dtype, self._exact = setup, store, holdings, dtype, exact
        self._healed = healed
        self._clamped: float | None = None
        #: What the truth in place of outputs would show as claimed.
        self._claimed = Claimed(store) if exact and near is not None and not healed else None
        self._claiming: Claimed | None = None
        self._is_updated = False
        self._parallel = parallelize(setup, dtype, exact=exact, prepare=lambda model: None)
        setup = replace(setup, rename=self._parallel.rename)
        self._activations = Activations(
            setup, store, near, limit, known_parts, healed, convention or Convention(), holdings
        )
        modules = self._parallel.modules
        self._tensors = Tensors(
            setup, store, holdings, modules, limit, healed, exact, set() if unseen is None else unseen
        )
        #: The plain optimizer on whole tensors, if it looks at more than an element, and ranks have parts.
        self._assembled = None
        if ranks is not None and not exact:
            self._assembled = Assembled(setup, store, dtype, ranks, holdings)
        self._of_parts = ranks is not None and exact
        self._shadow = None if exact or self._assembled is not None else self._new_shadow()
        #: What shows whether a step was made with the gradients that were there.
        self._witness: Shadow | None = None
        if exact:
            widen_buffers(setup, store, modules)

    def trace(self) -> Trace:
        """Return what is kept of the pass."""
        tensors = self._tensors
        return Trace(
            self._store,
            self._holdings,
            self._dtype,
            self._seen,
            tensors.clipped,
            self._clamped,
            tensors.epsilon,
            tuple(self._claimed.found) if self._claimed is not None else (),
        )

    def start(self) -> Seen:
        """Return what the initialization is."""
        self._seen = Seen()
        self._tensors.begin(self._seen)
        self._tensors.parameters(START, self._agrees)
        return self._seen

    def step(self, number: int, cut: Cut) -> Seen:
        """Run one step of the user's training."""
        self._seen, self._is_updated = Seen(), False
        self._tensors.begin(self._seen)
        batch = self._setup.whole_batch(number, self._dtype)
        seed(SEED + number)
        self._activations.begin(number, self._seen, batch)
        made, optimizer, modules = self._parallel.made, self._parallel.optimizer, self._parallel.modules
        self._claiming = self._claimed if number == 0 else None
        with (
            running_in(self._dtype if self._exact else torch.get_default_dtype(), self._exact),
            contextlib.nullcontext() if self._claiming is None else self._claiming.watching(self._seen),
            outputs(self._activations.named(modules), self._output, self._begins),
            inputs(modules, self._activations.called),
            clips(lambda clip: self._clip(number, clip)),
            clamps(lambda most: self._clamp(number, most)),
            steps(optimizer.each, lambda: self._before_update(number), lambda: self._after_update(number)),
        ):
            if self._setup.step is not None:
                self._returned(self._setup.step(made, optimizer.given, batch))
            else:
                self._loop(number, cut.apply(batch), cut)
        if not self._tensors.read:
            raise Unusable(
                "step(model, optimizer, batch) did not call optimizer.step(): there is no update to compare."
            )
        if self._assembled is not None:
            self._assembled.step()
        self._tensors.clipped_late(number)
        self._tensors.parameters(number, self._agrees)
        self._tensors.forget_unseen(number, self._differs)
        self._tensors.states(number, self._parallel.optimizer)
        for kind in (LOSS, NORM):
            if (kind, "") in self._healed:
                setattr(self._seen, kind, None)
        if self._seen.norm is not None:
            self._seen.own_norm = own_norm(self._store, number, self._holdings.shares)
        self._activations.end()
        return self._seen

    def _new_shadow(self) -> Shadow:
        return Shadow(self._setup.optimizer, self._parallel)

    def _agrees(self, key: str, values: torch.Tensor) -> bool:
        if self._of_parts and self._witness is not None and self._witness.agrees(key, values):
            self._seen.of_parts |= self._tensors.distances.names(key)
        if self._assembled is not None:
            return self._assembled.agrees(key, values)
        return self._shadow is not None and self._shadow.agrees(key, values)

    def _differs(self, key: str, values: torch.Tensor) -> bool:
        return self._witness is not None and self._witness.differs(key, values)

    def _loop(self, step: int, batch: Any, cut: Cut) -> None:
        """Train on a batch as a plain loop does."""
        self._seen.loss, norm = loop(self._setup, self._parallel, step, batch, cut)
        self._seen.norm = _number(norm)

    def _returned(self, returned: Any) -> None:
        """Take what the user's step returned: the loss, or the loss and the norm."""
        loss, norm = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        self._seen.loss = _number(loss)
        if norm is not None:
            self._seen.norm = _number(norm)
        self._seen.rounding = {
            kind: torch.finfo(each.dtype).eps
            for kind, each in ((LOSS, loss), (NORM, norm))
            if isinstance(each, torch.Tensor) and each.is_floating_point()
        }

    def _clip(self, step: int, clip: Clip) -> None:
        self._tensors.clipped = clip.most
        self._tensors.gradients(step)
        if not hasattr(clip.norm, "full_tensor") and self._seen.norm is None:
            self._seen.norm = float(local(clip.norm))

    def _clamp(self, step: int, most: float) -> None:
        self._clamped = most
        self._tensors.gradients(step)

    def _output(self, output: Output, value: torch.Tensor, is_passed_on: bool) -> torch.Tensor | None:
        # A closure may run again with other weights: the plain model's outputs are of the first time.
        if self._is_updated:
            return None
        found = self._activations.output(output, value, is_passed_on)
        if self._claiming is not None:
            self._claiming.leave(output, value)
        return found

    def _begins(self, name: str) -> None:
        if self._claiming is not None and not self._is_updated:
            self._claiming.enter(name)

    def _before_update(self, step: int) -> None:
        optimizer = self._parallel.optimizer
        self._tensors.gradients(step, optimizer.grad_scale)
        self._seen.rates = rates(optimizer)
        self._seen.is_scheduled = any("initial_lr" in group for group in optimizer.param_groups)
        self._is_updated = True
        self._witness = self._shadow
        if self._assembled is not None:
            self._assembled.take(self._parallel.modules)
        if self._exact and step == 0 and (self._of_parts or self._tensors.wrong):
            self._witness = self._new_shadow()
        if self._witness is not None:
            self._witness.take()

    def _after_update(self, step: int) -> None:
        right = self._tensors.gradients_again(step)
        if self._witness is not None:
            self._witness.step(right)


def loop(setup: Setup, parallel: Parallel, step: int, batch: Any, cut: Cut) -> tuple[float, Any]:
    """Train one step on a rank's part of a batch, in microbatches; return the loss and the norm, if it clips."""
    losses = []
    for part in parts(batch, setup.microbatches):
        found = setup.loss(parallel.made, part)
        weight = cut.weight(isinstance(found, tuple), setup.gradients)
        loss = setup.share_of(found, step, setup.microbatches) * weight
        loss.backward()
        losses.append(loss.detach().reshape(()))
    norm = None if setup.finish is None else setup.finish(parallel.made)
    if norm is None and setup.clip is not None:
        norm = torch.nn.utils.clip_grad_norm_([each for _, each in parameters(parallel.modules)], setup.clip)
    parallel.optimizer.step()
    parallel.optimizer.end()
    return float(local(torch.stack([local(loss) for loss in losses]).sum())), norm


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
