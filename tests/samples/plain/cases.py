"""All of them, as a test of everyrank's own users would be. From the project's root, for example:

pytest tests/samples/plain/cases.py -n auto --profile=full --shuffle=7 --fresh-worlds
"""

from __future__ import annotations

import importlib
from pathlib import Path

from everyrank.suites import conformance
from everyrank.suites.engine.case import Case

_HERE = Path(__file__).parent
NAMES = sorted(file.stem for file in _HERE.glob("*_*.py") if not file.stem.startswith("_"))
SUBJECTS = {name: importlib.import_module(f"{__package__}.{name}").SUBJECT for name in NAMES}


@conformance(*SUBJECTS.values())
def test_plain(case: Case) -> None:
    case.run()
