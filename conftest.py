"""For every test of this repository."""

from __future__ import annotations

pytest_plugins = ["pytester"]
