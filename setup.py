"""The packages: what pyproject.toml cannot say is that folders at the top level have names below everyrank."""

from setuptools import find_packages, setup

FOLDERS = {
    "everyrank": "harness",
    "everyrank.fixtures": "fixtures",
    "everyrank.parity": "parity",
    "everyrank.reports": "reports",
    "everyrank.suites": "suites",
}

setup(
    package_dir=FOLDERS,
    packages=[
        name for top, folder in FOLDERS.items() for name in (top, *(f"{top}.{p}" for p in find_packages(folder)))
    ],
)
