"""Which versions of torch a statement is about: PEP 440 specifiers, such as ``<2.14``."""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version


def is_specifier(text: object) -> bool:
    """Return whether this is a specifier, and not the empty one."""
    try:
        return isinstance(text, str) and len(SpecifierSet(text)) > 0
    except InvalidSpecifier:
        return False


def is_in_force(specifier: str, version: str) -> bool:
    """Return whether what is stated about these versions holds for this one; without a specifier it always does.

    A nightly build counts as the release that it will be. An unknown version counts as every one.
    """
    if not specifier:
        return True
    try:
        release = Version(version).base_version
    except InvalidVersion:
        return True
    return SpecifierSet(specifier).contains(release)


def minor_release(version: str) -> str:
    """Return the specifier of a version and all its patches: ``==2.14.*``."""
    release = Version(version).release
    return f"=={release[0]}.{release[1] if len(release) > 1 else 0}.*"
