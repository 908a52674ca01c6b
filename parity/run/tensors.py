"""Compare what a rank holds of parameters, gradients and buffers with the plain model's values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from everyrank.parity.run.activations import GradientClaim, Seen
from everyrank.parity.run.clip import clip_by_hand
from everyrank.parity.run.distances import Distances
from everyrank.parity.run.plain import BUFFER, GRADIENT, PARAMETER, START, STATE, Key, clip_factor, scale
from everyrank.parity.run.store import Store
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.optimizers import Optimizers
from everyrank.parity.values.claims import claim_of
from everyrank.parity.values.dye import Holdings
from everyrank.parity.values.exact import aside
from everyrank.parity.values.names import buffers, known_name, parameters
from everyrank.parity.values.tree import gradient_of, local
from everyrank.suites.compare.patterns.likeness import distance
from torch import nn
from torch.distributed.tensor import DTensor

#: Says of a parameter, by its key and values, whether the plain optimizer makes the same of this rank's gradients.
Agrees = Callable[[str, torch.Tensor], bool]


class Tensors:
    """The tensors that a rank's model keeps from step to step, and their gradients."""

    def __init__(
        self,
        setup: Setup,
        store: Store,
        holdings: Holdings,
        modules: list[nn.Module],
        limit: Callable[[Key], float | None],
        healed: frozenset[tuple[str, str]],
        exact: bool,
        unseen: set[str],
    ) -> None:
        #: Parameters whose gradients the optimizer reduces in its step, where nobody sees them: of all passes.
        self._unseen = unseen
        self._setup, self._store, self._modules = setup, store, modules
        self.distances = Distances(setup, store, holdings, limit)
        self._healed, self._exact = healed, exact
        #: To which norm torch's function clips, if the user calls it.
        self.clipped: float | None = None
        #: What a clip by hand adds to the norm, where it was first seen.
        self.epsilon: float | None = None
        self.begin(Seen())

    def begin(self, seen: Seen) -> None:
        """Begin a step; what is seen of it is noted there."""
        self._seen, self.read = seen, False
        #: Parameters whose update is another for rounding alone.
        self._excused: set[str] = set()
        self._late: dict[str, torch.Tensor] = {}

    @aside
    def gradients(self, step: int, scale: float = 1.0) -> None:
        """Compare the gradients, once they are final: before a clip, or before the optimizer's step.

        ``scale`` is what the optimizer will divide them by.
        """
        if self.read:
            return
        self.read = True
        values_by_key: dict[str, torch.Tensor] = {}
        for key, parameter in parameters(self._modules):
            if key in self.distances.shares:
                self._note_claim(step, key, parameter)
                absent = parameter.grad is None
                values_by_key[key] = torch.zeros_like(local(parameter.detach())) if absent else gradient_of(parameter)
        factor = scale
        if self._setup.clip is not None and self.clipped is None and self._setup.ends_by_hand:
            by_hand = clip_by_hand(
                self._setup.clip,
                self._setup.epsilon,
                self._store,
                step,
                self.distances.shares,
                values_by_key,
                self._exact,
            )
            factor, self._seen.norm = by_hand.factor, by_hand.norm
            self.epsilon = by_hand.epsilon if self.epsilon is None else self.epsilon
            if by_hand.norm is None:
                # Each rank may have clipped by another norm: by which, the user's step returns.
                self._late = {key: values.clone() for key, values in values_by_key.items()}
        for key, values in values_by_key.items():
            self._compare(GRADIENT, step, key, values if factor == 1 else values / factor)
        for key, parameter in parameters(self._modules) if self._healed else ():
            if key in values_by_key and parameter.grad is not None and parameter.grad.is_sparse:
                # What was compared, and healed, is a copy.
                parameter.grad = values_by_key[key].to_sparse(parameter.grad.sparse_dim())

    def _note_claim(self, step: int, key: str, parameter: torch.Tensor) -> None:
        """Note what a gradient claims that is a DTensor."""
        gradient = parameter.grad
        claim = claim_of(key, gradient) if isinstance(gradient, DTensor) else None
        if gradient is None or claim is None:
            return
        values, is_whole = local(gradient.detach()), False
        if values.shape == local(parameter.detach()).shape and values.any():
            is_whole = self.distances.is_right(GRADIENT, step, key, values)
        self._seen.gradient_claims |= dict.fromkeys(self.distances.names(key), GradientClaim(claim, is_whole))

    @property
    def wrong(self) -> set[str]:
        """The parameters of this rank whose gradients are not the plain model's."""
        return {known[3] for known in self._seen.kept if known[0] == GRADIENT}

    @aside
    def gradients_again(self, step: int) -> dict[str, torch.Tensor]:
        """Compare gradients that were wrong once the optimizer has stepped, and return those that it has put right.

        Horovod's optimizers and many engines reduce gradients when they step.
        """
        wrong, found = self.wrong, {}
        for key, parameter in parameters(self._modules) if wrong and self.clipped is None else ():
            if key not in wrong or parameter.grad is None:
                continue
            values = gradient_of(parameter)
            if self.distances.is_right(GRADIENT, step, key, values):
                found[key] = values
                self._forget(step, key)
                self._compare(GRADIENT, step, key, values)
        return found

    def forget_unseen(self, step: int, differs: Agrees) -> None:
        """Leave out gradients that were wrong where the optimizer has stepped with others, and its update is right.

        ``differs`` says whether the plain optimizer makes something else of the gradients that were there.
        """
        wrong = self.wrong
        updated = {key: local(each.detach()) for key, each in parameters(self._modules) if key in wrong}
        right = {
            key: values for key, values in updated.items() if self.distances.is_right(PARAMETER, step, key, values)
        }
        others = {key for key, values in updated.items() if differs(key, values)}
        self._unseen |= others & {*right}
        self._seen.of_others = {share.name for key in others - {*right} for share in self.distances.shares[key]}
        for key in right:
            # In the first step Adam takes signs alone, and in a narrow dtype the size of a gradient is not seen.
            if key in self._unseen or (self._unseen and not (self._exact and step == 0)):
                self._forget(step, key)

    def _forget(self, step: int, key: str) -> None:
        """Forget what was seen of a gradient."""
        for share in self.distances.shares[key]:
            known = (GRADIENT, step, share.name)
            self._seen.errors.pop(known, None)
            self._seen.kept.pop((*known, key), None)

    def clipped_late(self, step: int) -> None:
        """Compare gradients again that were clipped by hand, by the norm that the user's step has returned."""
        if not self._late or self._seen.norm is None or self._setup.clip is None:
            return
        factor = clip_factor(self._setup.clip, self._seen.norm, self._setup.epsilon)
        for known in [known for known in self._seen.errors if known[0] == GRADIENT]:
            del self._seen.errors[known]
        self._seen.kept = {key: values for key, values in self._seen.kept.items() if key[0] != GRADIENT}
        for key, values in self._late.items():
            self._compare(GRADIENT, step, key, values / factor)

    def parameters(self, step: int, agrees: Agrees) -> None:
        """Compare parameters and buffers after a step.

        ``agrees`` says whether the plain optimizer makes the same of the rank's gradients: then these decide.
        """
        for key, parameter in parameters(self._modules):
            if key in self.distances.shares:
                values = local(parameter.detach())
                self._compare(PARAMETER, step, key, values, agrees if step != START else None)
        for name, buffer in buffers(self._modules):
            known = (BUFFER, step, _buffer_name(self._setup, self._store, name))
            truth = self._store.get(known)
            mine = local(buffer)
            if truth is not None and truth.shape == mine.shape:
                error = distance(mine, truth) / scale(self._store, known)
                self._seen.note(known, error)
                if self.distances.is_wrong(known, error):
                    self._seen.kept[known] = mine.clone()

    def states(self, step: int, optimizer: Optimizers) -> None:
        """Compare what the optimizer keeps of parameters, which may be what no step of it uses, as an average."""
        for key, parameter in parameters(self._modules):
            if key not in self.distances.shares or key in self._excused:
                continue
            for kind, values in optimizer.state_of(parameter):
                for known, error in self.distances.errors(STATE, step, key, values, kind):
                    if (STATE, known[2]) not in self._healed:
                        self._seen.note(known, error)

    def _has_right_gradients(self, step: int, key: str) -> bool:
        """Return whether this rank's gradients of a tensor are the plain model's.

        What an optimizer makes of wrong ones is wrong, too: else they would pass for those that others reduce.
        """
        known = [(GRADIENT, step, share.name) for share in self.distances.shares[key]]
        return not any(self.distances.is_wrong(each, self._seen.errors.get(each, 0.0)) for each in known)

    def _compare(self, kind: str, step: int, key: str, values: torch.Tensor, agrees: Agrees | None = None) -> None:
        """Compare the parts of the plain model that a tensor of this rank holds."""
        for share, known, expected in self.distances.parts(kind, step, key):
            if (kind, share.name) in self._healed:
                share.write(values, expected)
            mine = share.read(values)
            error = distance(mine, expected) / scale(self._store, known)
            is_left = (
                agrees is not None and self.distances.is_wrong(known, error) and self._has_right_gradients(step, key)
            )
            if is_left and agrees and (agrees(key, values) or _is_of_rounding(self._store, step, share.name)):
                error = 0.0
                self._excused.add(key)
            self._seen.note(known, error)
            if self.distances.is_wrong(known, error):
                position = (*known, key)
                self._seen.kept[position] = share.looked_at(mine)


def _is_of_rounding(store: Store, step: int, name: str) -> bool:
    """Return whether a gradient is zero but for rounding: an optimizer without an epsilon takes its signs."""
    most = float(store.notes[f"largest {GRADIENT}"].get(step, 0.0))
    return 0 < store.largest((GRADIENT, step, name)) < 1e-12 * most


def widen_buffers(setup: Setup, store: Store, modules: list[nn.Module]) -> None:
    """Give buffers that the user's code makes itself the plain model's values, if rounding alone is between them.

    The plain model made them in its own dtype and was widened whole; theirs may be as narrow as they were.
    """
    for module in modules:
        for path, owner in module.named_modules():
            for name, buffer in owner.named_buffers(recurse=False):
                known = _buffer_name(setup, store, f"{path}.{name}" if path else name)
                truth = store.get((BUFFER, START, known))
                if truth is None or truth.shape != buffer.shape or isinstance(buffer, DTensor):
                    continue
                if buffer.dtype == truth.dtype and torch.equal(buffer, truth):
                    continue  # It stays the one that wrappers know.
                if distance(buffer, truth) <= 1e-6 * float(truth.abs().max() if truth.numel() else 0):
                    owner._buffers[name] = truth.clone()


def _buffer_name(setup: Setup, store: Store, name: str) -> str | None:
    return known_name(name, setup.rename, store.notes["buffers"])
