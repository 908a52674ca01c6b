"""mypy refuses a law that does not fit its points: one takes other points, another reads a field that they lack."""

from __future__ import annotations

from pathlib import Path

from everyrank.model.toml import tomllib

ROOT = Path(__file__).parents[2]


def test_our_own_laws_are_checked_as_the_sample_is() -> None:
    """No setting of the project switches these errors off, and `make check` looks at the sample."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"]  # so an ignore that is not needed is an error
    disabled = [code for part in (settings, *settings["overrides"]) for code in part.get("disable_error_code", ())]
    assert not {"arg-type", "attr-defined", "call-arg", "unused-ignore"} & set(disabled)
    assert "mypy tests/samples/laws_that_do_not_fit.py " in (ROOT / "Makefile").read_text()
