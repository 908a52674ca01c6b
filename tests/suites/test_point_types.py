"""mypy refuses a law that does not fit its points: one takes other points, another reads a field that they lack."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]

_LAWS = """
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from everyrank.suites import Point
from everyrank.suites.replicate.contract import CONTRACT
from everyrank.suites.replicate.laws.modules import BufferPoint
from everyrank.suites.replicate.points import each_size


@dataclass(frozen=True, kw_only=True)
class RatePoint(Point):
    rate: float


@dataclass(frozen=True, kw_only=True)
class StepPoint(Point):
    steps: int


def rates() -> Iterator[RatePoint]:
    yield RatePoint("", 2, rate=0.1)


@CONTRACT.law("fits", rates)
def fits(arena: object, point: RatePoint) -> None:
    print(point.rate, point.size)


@CONTRACT.law("reads-little", rates)
def reads_little(arena: object, point: Point) -> None:
    print(point.size)


@CONTRACT.law("takes-another-point", rates)  # refused: arg-type
def takes_another_point(arena: object, point: StepPoint) -> None:
    print(point.steps)


@CONTRACT.law("takes-another-point-of-a-lambda", lambda: [RatePoint("", 2, rate=0.1)])  # refused: arg-type
def takes_another_point_of_a_lambda(arena: object, point: StepPoint) -> None:
    print(point.steps)


@CONTRACT.law("reads-a-missing-field", rates)
def reads_a_missing_field(arena: object, point: RatePoint) -> None:
    print(point.steps)  # refused: attr-defined


@CONTRACT.law("of-each-size", lambda: each_size(partial(BufferPoint, manner="train"), 2, 3))
def of_each_size(arena: object, point: BufferPoint) -> None:
    print(point.manner)


RatePoint("", 2, rate="0.1")  # refused: arg-type
partial(BufferPoint, manner="trains")  # refused: arg-type
"""


def test_a_law_that_does_not_fit_its_points_is_refused(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "laws.py"
    file.write_text(_LAWS)
    # With the project's settings, mypy knows from `make check` what it needs of everyrank and torch.
    settings = [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}"]
    out, errors, _ = api.run([*settings, "--no-error-summary", str(file)])
    assert not errors
    refused = [(int(line.split(":")[1]), line.rsplit("[", 1)[1].rstrip("]")) for line in out.splitlines()]
    lines = enumerate(_LAWS.splitlines(), 1)
    assert refused == [(number, line.split("# refused: ")[1]) for number, line in lines if "# refused: " in line], out


def test_our_own_laws_are_checked_like_that() -> None:
    """No setting of the project switches these errors off."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"]
    disabled = [code for part in (settings, *settings["overrides"]) for code in part.get("disable_error_code", ())]
    assert not {"arg-type", "attr-defined", "call-arg"} & set(disabled)
