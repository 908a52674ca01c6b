"""How both sides of a script of ``trainer`` are compared, and how far they may be apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Comparison, Tolerance, check
from everyrank.suites.trainer.arena import AMPLIFIED, CLOSE_FP32, Arena
from everyrank.suites.trainer.model import Model
from everyrank.suites.trainer.model_alone import ModelAlone
from everyrank.suites.trainer.parameters import Values

#: Dtypes whose sums have an error of their own, which the next step carries into all parameters.
_COARSE = (torch.float32, torch.complex64)

#: Options of torch's optimizers that choose how they compute, and not what.
_KERNELS = {"foreach", "fused", "capturable", "differentiable"}


class Comparing:
    """Compares the subject's side with the reference's."""

    arena: Arena
    made_of: Model
    training: Any
    alone: Any
    as_torch: ModelAlone | None
    exact_so_far: bool

    @property
    def references(self) -> list[ModelAlone]:
        """The reference, and that which saves and loads where the subject does, if there is one."""
        return [self.alone] if self.as_torch is None else [self.alone, self.as_torch]

    def tolerances(self, wanted: Values) -> dict[str, Tolerance]:
        """Return how far each parameter may be off."""
        fine = AMPLIFIED if self.made_of.optimizer == "LBFGS" else CLOSE_FP64
        fine = fine if self.exact_so_far else CLOSE_FP32
        return {name: CLOSE_FP32 if value.dtype in _COARSE else fine for name, value in wanted.items()}

    def wanted(self, found: Values) -> Values:
        """Return the reference's parameters: of two those that are nearer to what was found."""
        return min((each.values for each in self.references), key=lambda wanted: _apart(found, wanted))

    def compare(self) -> None:
        """Compare the full parameters with those of the reference."""
        self.compare_values(self.training.values)

    def compare_values(self, found: Values) -> None:
        """Compare the full parameters, which are these, with those of the reference."""
        wanted = self.wanted(found)
        self.check(found, wanted, self.tolerances(wanted))
        self.exact_so_far &= all(torch.equal(found[name], wanted[name]) for name in self.coarse)

    @property
    def coarse(self) -> list[str]:
        """The parameters whose sums have an error of their own."""
        return [name for name, value in self.alone.model.named_parameters() if value.dtype in _COARSE]

    @property
    def coarse_gradients(self) -> bool:
        """Whether one of these has a gradient that is not zero: only that has an error."""
        gradients = [self.alone.model.get_parameter(name).grad for name in self.coarse]
        return any(bool(gradient.any()) for gradient in gradients if gradient is not None)

    def verdict(self) -> None:
        """Raise what was found at the end, if anything was left for it."""

    def check(self, found: Values, wanted: Values, allowed: Mapping[str, Tolerance]) -> None:
        """Raise Deviation with the first difference."""
        if set(found) != set(wanted):
            Comparison(EXACT).step(0, found, wanted)
        for tolerance in dict.fromkeys(allowed.values()):
            comparison = Comparison(tolerance, self.arena.subject.bound)
            alike = [name for name in wanted if allowed[name] == tolerance]
            comparison.step(0, {name: found[name] for name in alike}, {name: wanted[name] for name in alike})
            comparison.raise_first()

    def compare_options(self) -> None:
        """Compare the options of each group. A trainer may have a group for each parameter of a single one."""
        with subject_acts("param_groups"):
            found = list(self.training.trainer.param_groups)
        due = self.alone.optimizer.param_groups
        for number, group in enumerate(found):
            wanted = due[0] if len(due) == 1 else due[number] if len(due) == len(found) else {}
            for name in self.alone.optimizer.defaults.keys() & wanted.keys() & group.keys() - _KERNELS:
                text = f"{name} of group {number} is {group[name]}, and {wanted[name]} is due"
                check(_options_agree(group[name], wanted[name]), f"{text}, on rank {self.arena.rank}")

    def compare_generators(self) -> None:
        """Compare where the generator of this rank's part is after a step."""
        index = self.training.index
        there = torch.equal(self.training.generators[index], self.alone.generators[index])
        check(there, "the step has drawn more or fewer numbers than its forwards do")

    def compare_loss(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        """Compare the loss that a step has returned."""
        ours = found.detach().cpu().reshape(()).to(wanted.dtype)
        allowed = self.tolerances(self.alone.values).values()
        loosest = max(allowed, key=lambda tolerance: tolerance.relative)
        self.check({"the loss": ours}, {"the loss": wanted.detach().reshape(())}, {"the loss": loosest})


def _apart(found: Values, wanted: Values) -> float:
    """Return how far the values are apart that are near each other, of one shape: others are as far from both."""
    pairs = [(found[name], value) for name, value in wanted.items() if name in found]
    near = [(ours - value).abs().nan_to_num() for ours, value in pairs if ours.shape == value.shape]
    return float(sum(each.double().sum() for each in near))


def _options_agree(found: Any, wanted: Any) -> bool:
    """Return whether two values of an option are one, as numbers, tensors or pairs of these."""
    if wanted is None or isinstance(wanted, str | bool):
        return bool(found == wanted)
    ours, theirs = (torch.as_tensor(value, dtype=torch.float64) for value in (found, wanted))
    return torch.allclose(ours.cpu(), theirs.cpu(), rtol=1e-6)
