"""What a script of ``parameter-server`` has done so far, as plain data, and what a model needs of a subject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from everyrank.fixtures.optimizers import every, row
from everyrank.suites.moves.model import needed_by as everywhere
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.model import Model, Param
from everyrank.suites.parameter_server.points import EXCLUDED

#: Features of models, each with the model of the table that has it.
_OF_MODELS = {
    "frozen parameters": "frozen",
    "tied parameters": "tied",
    "buffers": "buffers",
    "scalars": "scalars",
    "empty parameters": "empty",
    "transposed parameters": "non-contiguous",
    "parameters with gaps": "gaps",
    "shared storage": "views",
    "mixed dtypes": "mixed-dtypes",
    "complex parameters": "complex",
}

#: A subject is not asked for a feature if an entry of its ledger or of its lacks matches these cases.
FEATURES = {
    **{name: f"parity.round*[SGD-momentum-{model}-n2-ws1]" for name, model in _OF_MODELS.items()},
    "sparse gradients": "parity.round*[SGD-lr-sparse-*-n2-ws1]",
    "sparse and dense gradients": "parity.round*[SGD-momentum-partly-sparse-n2-ws1]",
    "trainers on other workers": "parity.round*[SGD-momentum-rpc-n*]",
    "many trainers": "parity.round*[SGD-momentum-n7-ws1]",
    "missing gradients": "none[*]",
    "missing gradients of all": "clean-round[none-of-all-*]",
    "large gradients": "clean-round[large-*]",
    "values that are not finite": "errors.gradient[*-taken-n2-ws1]",
    "expired rounds": "errors.dead-trainer[*]",
    "reports again": "wait[again-*]",
    "reports that meet": "lost-update[*]",
    "reports during updates": "overlap[updated-*]",
    "reports during answers": "overlap[answered-*]",
    "answers that are kept or changed": "alias[answer-*]",
    "gradients changed once reported": "alias[gradients-n*]",
    "gradients changed once answered": "alias[gradients-later-*]",
    **{f"refuses {name}": f"errors.gradient[{name}-*]" for name in (*wrong_gradients.ONE, *wrong_gradients.ALL)},
    **{f"refuses {name}": "errors.gradient[inf-*]" for name in wrong_gradients.SPARSE},
}
for _row, _variant in every(EXCLUDED):
    FEATURES[f"{_row.name} {_variant.name}"] = f"parity.round*[{_row.name}-{_variant.name}-n3-ws1]"
    if _variant.name == "defaults" and "sparse" not in _row.needs:
        FEATURES[f"{_row.name} in float32"] = f"parity.round*[{_row.name}-defaults-fp32-n3-ws1]"
        FEATURES[f"{_row.name} with missing gradients"] = f"none[{_row.name}-defaults-*]"


@dataclass
class Outline:
    """The facts on which it depends whether a move makes sense, and what it needs."""

    model: Model
    waiting: list[int] = field(default_factory=list)
    """The trainers that have reported in the open round, in their order."""
    given: set[int] = field(default_factory=set)
    """The parameters of which the open round has a gradient."""
    reported: set[int] = field(default_factory=set)
    """The trainers that have ever reported."""
    answered: bool = False
    """Whether a round was answered."""
    refused: int = 0
    """How many reports were refused; it begins again after a few."""

    @property
    def trained(self) -> list[int]:
        return self.model.trained

    @property
    def absent(self) -> list[int]:
        """The trainers that have not reported in the open round."""
        return [trainer for trainer in range(len(self.model.trainers)) if trainer not in self.waiting]

    @property
    def near(self) -> list[int]:
        """The trainers in the server's process."""
        return [trainer for trainer, worker in enumerate(self.model.trainers) if worker is None]

    @property
    def near_absent(self) -> list[int]:
        """Those of them that have not reported in the open round."""
        return [trainer for trainer in self.near if trainer not in self.waiting]

    def missing_needs(self, missing: tuple[int, ...], reporting: int) -> Iterator[str]:
        """Yield what it needs that the next reports, this many, have no gradients of some parameters."""
        if missing:
            yield "missing gradients"
            if "sparse" not in row(self.model.optimizer).needs:
                yield f"{self.model.optimizer} with missing gradients"
        if set(missing) - self.given and reporting == len(self.absent):
            yield "missing gradients of all"

    def report(self, trainers: list[int], missing: tuple[int, ...] = ()) -> None:
        """Note that these trainers report."""
        self.waiting += trainers
        self.reported |= set(trainers)
        self.given |= set(self.model.trained) - set(missing)
        if not self.absent:
            self.answers()

    def answers(self) -> None:
        """Note that the round is answered."""
        self.waiting, self.given, self.answered = [], set(), True


def needed_by(param: Param, model: Model) -> Iterator[str]:
    """Yield the features that a parameter needs in a model."""
    float32 = {each.dtype for each in model.params} == {"float32"}
    for feature in everywhere(param):
        yield f"{model.optimizer} in float32" if float32 and feature == "mixed dtypes" else feature
