"""Python's reader of TOML; before Python 3.11, that of the package that it was made of."""

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["tomllib"]
