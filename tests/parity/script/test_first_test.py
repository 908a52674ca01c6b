"""The file with a test that a run ends with can be imported as it stands, whatever the script's model is."""

from __future__ import annotations

import contextlib
import dataclasses
import runpy
import sys
from pathlib import Path

import pytest
from everyrank.parity.script import first_test
from everyrank.parity.script.kept import Facts

pytestmark = pytest.mark.smoke

SCRIPT = "class Net: ..."
NET = Facts(
    modules=["Net"], origins=["__main__"], wrappers=["DistributedDataParallel"], optimizers=["AdamW"], rate=1e-2
)

#: By what the script is: its name, its facts, and what stands in the file.
MODELS = {
    "a script": ("train_it.py", NET, "from train_it import Net"),
    "a module": ("package_of_it.train", NET, "from package_of_it.train import Net"),
    "a name that is no module": ("train-it.py", NET, "model=lambda: ...,  # what makes the Net of train-it.py"),
    "a class in a function": (
        "train_it.py",
        dataclasses.replace(NET, origins=[""]),
        "model=lambda: ...,  # what makes the Net",
    ),
    "a module of torch's": (
        "train_it.py",
        dataclasses.replace(NET, modules=["Sequential"], origins=["torch.nn.modules.container"]),
        "model=lambda: ...,  # what makes the Sequential",
    ),
    "FSDP2": ("train_it.py", dataclasses.replace(NET, wrappers=["FSDPModule"]), "fully_shard(model),"),
    "by hand": ("train_it.py", dataclasses.replace(NET, wrappers=["Net"]), "parallelize=lambda model: ...,"),
    "ZeRO": (
        "train_it.py",
        dataclasses.replace(NET, optimizers=["ZeroRedundancyOptimizer"]),
        "optimizer=lambda parameters: ...,  # one process's, for ZeroRedundancyOptimizer",
    ),
    "nothing is known": ("train_it.py", Facts(), "model=lambda: ...,"),
}


def imported(text: str, folder: Path) -> None:
    """Import a file with this text, in which the scripts of this folder can be imported."""
    path = folder / "test_it.py"
    path.write_text(text)
    with contextlib.suppress(KeyError):
        del sys.modules["train_it"]
    assert "test_the_ranks_train_as_one" in runpy.run_path(str(path))


@pytest.mark.parametrize("model", MODELS)
def test_the_file_can_be_imported_as_it_stands(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, facts, line = MODELS[model]
    (tmp_path / "package_of_it").mkdir()
    for name in ("train_it.py", "package_of_it/__init__.py", "package_of_it/train.py"):
        (tmp_path / name).write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "\n".join(first_test.lines(facts, script, 2))
    assert line in text
    imported(text, tmp_path)
