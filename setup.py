"""What pyproject.toml cannot say: top folders have names below everyrank, and one file is made of code."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = {
    "everyrank": "harness",
    "everyrank.fixtures": "fixtures",
    "everyrank.parity": "parity",
    "everyrank.reports": "reports",
    "everyrank.suites": "suites",
}


class BuildWithSchema(build_py):
    """Write the JSON Schema of a run file's lines, which takes msgspec to make, and neither torch nor pytest."""

    def run(self):
        super().run()
        everyrank = sys.modules["everyrank"] = ModuleType("everyrank")
        everyrank.__path__ = ["harness", "."]
        self._schema.parent.mkdir(parents=True, exist_ok=True)
        self._schema.write_text(importlib.import_module("everyrank.reports.schema").text())

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), str(self._schema)]

    @property
    def _schema(self):
        return Path(self.build_lib, "everyrank", "reports", "schema.json")


setup(
    cmdclass={"build_py": BuildWithSchema},
    package_dir=FOLDERS,
    packages=[
        name for top, folder in FOLDERS.items() for name in (top, *(f"{top}.{p}" for p in find_packages(folder)))
    ],
)
