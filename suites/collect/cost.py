"""The number of cases of a subject by law, optimizer and world size, in each profile: what one more value costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from everyrank.suites.collect.profile import DEFAULT, FULL, QUICK
from everyrank.suites.collect.rotation import in_profile
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.subject import Subject

_PROFILES = (QUICK, DEFAULT, FULL)

_GROUPS: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("law", lambda case: case.law.id),
    ("optimizer", lambda case: case.point.optimizer or "(none)"),
    ("world size", lambda case: str(case.point.claimed_size)),
)


def table(subject: Subject, folder: Path | None = None) -> Iterator[str]:
    """Yield the lines of the table."""
    all_cases = cases(subject, folder)
    chosen = {profile: in_profile(profile, all_cases) for profile in _PROFILES}
    rows: list[tuple[str, list[Case]]] = [("all", all_cases)]
    for group, key in _GROUPS:
        by_key: dict[str, list[Case]] = {}
        for case in all_cases:
            by_key.setdefault(key(case), []).append(case)
        rows += [(f"{group} {name}", by_key[name]) for name in by_key]
    width = max(len(name) for name, _ in rows)
    yield f"{subject.name} ({subject.contract_name}), cases in the profiles"
    yield f"{'':{width}}{''.join(f'{profile:>9}' for profile in _PROFILES)}"
    for name, members in rows:
        counts = [sum(case.id in chosen[profile] for case in members) for profile in _PROFILES]
        yield f"{name:{width}}{''.join(f'{count:>9,}' for count in counts)}"
