"""An error in parity's own code is one sentence that asks for a report; one in the user's code stays what it is."""

from __future__ import annotations

import ast
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from everyrank.parity import Defect, Parted, errors
from everyrank.parity.judge import evidence, patterns, steps, training
from everyrank.parity.report import layout, record
from everyrank.parity.run import activations, factors, parallel, plain, shadow, store, tensors
from everyrank.parity.setup import known, split
from everyrank.parity.values import dye
from everyrank.suites.compare import comparison
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.test_plain_code import clipped
from tests.parity.test_use_and_misuse import Net, compare, loss

pytestmark = pytest.mark.world(2)

Batch = dict[str, torch.Tensor]


#: Where an error is planted: the object, its attribute, and the arguments of a call that comes there.
PLANTED: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "the plain model": (known, "own_dtype", {}),
    "the dye": (dye, "_shares", {}),
    "the split": (split, "_data_parallel", {}),
    "the plain run": (plain, "_parameters", {}),
    "a hook of the plain run": (plain.Keeper, "value", {}),
    "the file": (store.Writer, "write", {}),
    "noise": (plain.Noise, "value", {}),
    "an output": (activations.Activations, "_compare", {}),
    "a hook of the backward": (factors, "multiple", {}),
    "a gradient": (tensors, "gradient_of", {}),
    "a clip": (parallel.Rank, "_clip", {"clip": 0.01}),
    "an update": (shadow.Shadow, "step", {}),
    "the end of a step": (tensors, "buffers", {}),
    "the judge": (steps, "_held", {}),
    "the limits": (training, "_within", {}),
    "the record": (record, "maps_of", {}),
    "a picture": (layout, "picture", {}),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_fault_of_parity_asks_for_a_report(case: str, process_group: Any) -> None:
    target, name, changed = PLANTED[case]
    with patch.object(target, name, fault_of_ours(target)), pytest.raises(Defect) as caught:
        compare(**changed)
    first, second = str(caught.value).splitlines()
    assert re.fullmatch(
        r"parity has failed by a fault of its own, and says nothing of your code: AttributeError: 'NoneType' object "
        r"has no attribute 'nothing', at \w+\.py:\d+\. Please report it, with these lines and, if you "
        r"can, the test\.",
        first,
    )
    assert second.startswith("parity came there by ")


def test_a_fault_of_the_search_asks_for_a_report(process_group: Any) -> None:
    def parallelize(model: nn.Module) -> nn.Module:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["last.bias"])
        return DistributedDataParallel(model)

    for target, name in ((patterns.Patterns, "explain"), (evidence, "of_all_ranks")):
        with patch.object(target, name, fault_of_ours(patterns)), pytest.raises(Defect):
            compare(parallelize=parallelize)


def fault_of_ours(target: Any) -> Any:
    """Return the mistake as if it stood in the code that it is planted in."""
    module = target if isinstance(target, ModuleType) else sys.modules[target.__module__]
    made: dict[str, Any] = {}
    planted = compile("def planted(*arguments, **named):\n    return None.nothing", str(module.__file__), "exec")
    exec(planted, {**vars(module)}, made)
    return made["planted"]


# -- errors of the user's code ---------------------------------------------------------------------------------------


def not_the_plain(model: nn.Module) -> int:
    return int(not isinstance(model, Net))


def _fails(model: Any, optimizer: Any, batch: Batch) -> Any:
    found = loss(model, batch)
    found.backward()
    optimizer.step(closure=3, other=4)


def _short(model: nn.Module) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1)


class InPlace(nn.Module):
    """Changes what its backward needs, which torch finds out in the backward, without a line of the user's."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *given: Any) -> Any:
        kept = self.net(*given).sigmoid()
        squares = kept * kept
        kept.add_(1)
        return squares


THEIRS: dict[str, tuple[dict[str, Any], str]] = {
    "a layer that does not fit": (
        {"loss": lambda model, batch: loss(model, {**batch, "rows": batch["rows"][:, not_the_plain(model) :]})},
        "shapes cannot be multiplied",
    ),
    "a backward that torch refuses": ({"parallelize": InPlace}, "modified by an inplace operation"),
    "a step's own error": ({"step": lambda *_: {}["none"]}, "none"),
    "an optimizer's error": ({"step": _fails}, "unexpected keyword argument"),
    "a loss of nothing on ranks": (
        {"loss": lambda model, batch: loss(model, batch) if isinstance(model, Net) else None},
        "unsupported operand",
    ),
    "a model that cannot be built": ({"model": lambda: nn.Linear(*"ab")}, "empty()"),
    "an optimizer of nothing": (
        {
            "model": lambda: Net().requires_grad_(False),
            "parallelize": lambda model: model,
            "step": lambda *_: None,
            "optimizer": torch.optim.SGD,
        },
        "optimizer got an empty parameter list",
    ),
    "an optimizer with a wrong rate": ({"optimizer": partial(torch.optim.SGD, lr=-1)}, "Invalid learning rate"),
    "a scheduler that has ended": ({"optimizer": _short}, "Tried to step 2 times"),
    "a clip of nothing": ({"step": lambda model, *_: clipped(nn.ReLU(), 1.0)}, "non-empty"),
}


@pytest.mark.parametrize("case", THEIRS)
def test_an_error_of_the_users_code_stays_what_it_is(case: str, process_group: Any) -> None:
    changed, message = THEIRS[case]
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        compare(**changed)
    assert not isinstance(caught.value, Defect | Parted)


@pytest.mark.world(1)
def test_each_function_that_the_net_knows_is_there() -> None:
    folders = [Path(errors.__file__).parent, Path(comparison.__file__).parent]
    trees = [ast.parse(file.read_text()) for folder in folders for file in folder.rglob("*.py")]
    functions = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    known = errors._HAND_ON | errors._RUN_THEIRS | errors._CALL_THEIRS
    assert known - functions == {"<lambda>"}
