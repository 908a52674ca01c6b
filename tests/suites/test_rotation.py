"""The profiles: quick and default are chosen out of all cases, and lose no value of what a law is about."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from everyrank.fixtures import optimizers
from everyrank.suites import Lack, Subject
from everyrank.suites.collect.rotation import default, quick
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.contract import contract as find_contract
from everyrank.suites.engine.contract import contracts
from everyrank.suites.errors import DeclarationError

RPC = Subject("mine.Rpc", contract="rpc-optimizer", build=print)
TRAINER = Subject("mine.Trainer", contract="trainer", build=print)
SUBJECTS = [Subject(f"mine.{name}", contract=name, build=print) for name in sorted(contracts())]
EACH_CONTRACT = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.contract)

FOLDER = Path(__file__).parents[2] / "suites"


def _of_torch() -> Iterator[Subject]:
    """Yield the subjects of this repository."""
    for contract in contracts():
        name = f"everyrank.suites.{contract.replace('-', '_')}.subjects"
        module = importlib.import_module(name)
        parts = [info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}.")]
        values = [value for part in (name, *parts) for value in vars(importlib.import_module(part)).values()]
        yield from {
            value.name: value for value in values if isinstance(value, Subject) and value.contract == contract
        }.values()


def _chosen(found: list[Case], ids: set[str]) -> list[Case]:
    return [case for case in found if case.id in ids]


@EACH_CONTRACT
def test_quick_has_each_law_and_each_optimizer_once(subject: Subject) -> None:
    found = cases(subject)
    chosen = _chosen(found, quick(found))
    laws, trained = {case.law.id for case in found}, {case.point.optimizer for case in found} - {""}
    assert {case.law.id for case in chosen} == laws
    assert {case.point.optimizer for case in chosen} - {""} == trained
    assert len(chosen) <= len(laws) + len(trained)


def test_quick_prefers_a_case_that_is_expected_to_pass() -> None:
    lacking = replace(RPC, lacks={"parity.one-step[ASGD-*]": Lack("no ASGD", NotImplementedError)})
    found = cases(lacking)
    assert [case.lack for case in _chosen(found, quick(found)) if case.point.optimizer == "ASGD"] == [None]


@pytest.mark.parametrize("law", ["errors.arguments", "parity.trajectory"])
def test_quick_asks_a_law_where_it_is_expected_to_hold(law: str) -> None:
    found = cases(RPC)
    asked = [case for case in _chosen(found, quick(found)) if case.law.id == law]
    lacks = {case.id.partition("/")[2]: Lack("not this one", NotImplementedError) for case in asked}
    found = cases(replace(RPC, lacks=lacks))
    assert sum(case.lack is not None for case in found) == len(asked) > 0
    assert all(case.lack is None for case in _chosen(found, quick(found)) if case.law.id == law)


def test_quick_prefers_a_case_that_kills_rogues() -> None:
    found = cases(RPC)
    by_law = {case.law.id: [] for case in found if case.point.core}
    for case in _chosen(found, quick(found)):
        by_law[case.law.id].append(case.point.core)
    assert all(any(core) for core in by_law.values())


def test_the_choice_does_not_depend_on_which_laws_were_imported_first() -> None:
    contract = find_contract("trainer")
    before, laws = default(cases(TRAINER)), dict(contract._laws)
    contract._laws.clear()
    modules = contract.law_modules
    contract._laws.update(sorted(laws.items(), key=lambda item: -modules.index(item[1].check.__module__)))
    assert list(contract._laws) != list(laws)
    contract._points = ((), [])
    try:
        assert default(cases(TRAINER)) == before
        assert quick(cases(TRAINER)) <= before
    finally:
        contract._laws.clear()
        contract._laws.update(laws)
        contract._points = ((), [])


@EACH_CONTRACT
def test_default_has_the_core_and_the_subjects_share_each_value_of_what_a_law_is_about(subject: Subject) -> None:
    shared: dict[str, set[tuple[str, ...]]] = {}
    for number in range(12):
        found = cases(replace(subject, name=f"subject-{number}"))
        chosen = _chosen(found, default(found))
        core = {case.id for case in found if case.point.core and case.point.turns == 1}
        assert core <= {case.id for case in chosen}
        assert len(chosen) < len(found) / 2
        for law, mine in _by_law(chosen).items():
            shared.setdefault(law, set()).update(_values(mine))
            assert {size for _, size in _with_sizes(_by_law(found)[law])} == {size for _, size in _with_sizes(mine)}
    for law, whole in _by_law(found).items():
        assert shared[law] == _values([case for case in whole if case.point.turns]), law


@EACH_CONTRACT
def test_of_a_law_that_varies_arguments_a_subject_has_each_optimizer_at_each_size_and_a_third_of_the_variants(
    subject: Subject,
) -> None:
    found = cases(subject)
    chosen = _by_law(_chosen(found, default(found)))
    varied = [law for law, whole in _by_law(found).items() if len(_variants(whole)) > 20]
    assert varied or subject.contract == "parameter-server"
    for law in varied:
        whole = _by_law(found)[law]
        assert _with_sizes(chosen[law]) == _with_sizes(whole)
        assert len(_variants(chosen[law])) < 0.75 * len(_variants(whole))


@pytest.mark.parametrize("law", ["errors.arguments", "parity.groups"])
def test_of_another_law_a_subject_has_a_third_of_the_optimizers(law: str) -> None:
    found = cases(TRAINER)
    whole, trained = (
        {case.point.optimizer for case in each if case.law.id == law}
        for each in (found, _chosen(found, default(found)))
    )
    assert len(trained) < len(whole) / 2


def _by_law(found: list[Case]) -> dict[str, list[Case]]:
    laws: dict[str, list[Case]] = {}
    for case in found:
        if case.law.id not in ("parity.one-step", "parity.round"):
            laws.setdefault(case.law.id, []).append(case)
    return laws


def _with_sizes(found: list[Case]) -> set[tuple[str, str]]:
    return {(case.point.optimizer, str(case.point.claimed_size)) for case in found}


def _variants(found: list[Case]) -> set[str]:
    return {case.point.fields["variant"] for case in found if case.point.optimizer and "variant" in case.point.fields}


def _values(found: list[Case]) -> set[tuple[str, ...]]:
    """Return what the cases of a law have between them."""
    values: set[tuple[str, ...]] = set()
    for point in (case.point for case in found):
        values |= set(point.fields.items()) if point.optimizer else {("label", point.label)}
    return values


def test_over_the_subjects_most_variants_have_their_turn() -> None:
    found = cases(TRAINER)
    variants = {(case.point.optimizer, case.point.fields["variant"]) for case in found if _trains(case)}
    seen: set[tuple[str, str]] = set()
    for number in range(12):
        turn = cases(replace(TRAINER, name=f"subject-{number}"))
        seen |= {
            (case.point.optimizer, case.point.fields["variant"])
            for case in _chosen(turn, default(turn))
            if _trains(case)
        }
    assert len(seen) > 0.8 * len(variants)


def _trains(case: Case) -> bool:
    return case.law.id == "parity.train"


@EACH_CONTRACT
def test_of_any_three_scripts_in_a_row_a_subject_has_one_and_of_three_subjects_one_has_each(subject: Subject) -> None:
    decks = [_dealt(replace(subject, turn=turn)) for turn in (0, 1, 2)]
    assert len(decks[0]) > 120
    # The one of the quick profile comes on top, for each subject.
    assert {sum(deals) for deals in zip(*decks, strict=True)} - {3} == {1}
    for deck in decks:
        in_a_row = Counter(sum(deck[start : start + 3]) for start in range(len(deck) - 2))
        assert set(in_a_row) <= {1, 2}
        assert in_a_row[2] <= 3


@EACH_CONTRACT
def test_a_subject_without_a_turn_has_each_script(subject: Subject) -> None:
    assert all(_dealt(replace(subject, turn=None)))
    assert not all(_dealt(replace(subject, turn=0)))


def test_each_script_of_trainer_is_dealt_to_one_or_two_of_the_subjects_that_have_all() -> None:
    # The fourth subject has the scripts of the first, whichever of them are selected. Two have none of four ranks.
    subjects = [subject for subject in _dealt_to("trainer") if subject.sizes in (None, (2, 3))]
    assert len(subjects) == 4
    scripts = [_scripts(_cases_of(subject)) for subject in subjects]
    decks = [
        dict(zip((case.id for case in mine), _dealt(subject), strict=True))
        for mine, subject in zip(scripts, subjects, strict=True)
    ]
    plain = {case.id for case in scripts[0] if not case.point.core}  # one of the core is in the quick profile, too
    assert {sum(deck[each] for deck in decks) for each in plain.intersection(*decks)} == {1, 2}
    assert {sum(deck.get(each, False) for deck in decks) for each in plain.difference(*decks[1:])} <= {1, 2}


@pytest.mark.parametrize("contract", sorted(contracts()))
def test_the_subjects_that_scripts_are_dealt_to_are_numbered(contract: str) -> None:
    turns = sorted(-1 if subject.turn is None else subject.turn for subject in _dealt_to(contract))
    assert turns == [*range(len(turns))]


def test_a_subject_of_few_sizes_has_a_third_of_its_own_scripts() -> None:
    for size in (2, 3):
        found = _scripts(cases(replace(TRAINER, sizes=(size,), turn=1)))
        dealt = _dealt(replace(TRAINER, sizes=(size,), turn=1))
        assert len(dealt) == len(found) > 90
        assert all(any(dealt[start : start + 3]) for start in range(len(dealt) - 2))


@pytest.mark.parametrize("turn", [-1, True, "first"])
def test_a_turn_is_a_number(turn: object) -> None:
    with pytest.raises(DeclarationError, match="turn is a number among the subjects of its contract"):
        replace(TRAINER, turn=turn)  # type: ignore[arg-type]


def _dealt(subject: Subject) -> list[bool]:
    """Return for each script of the default profile whether the subject has it."""
    found = _cases_of(subject)
    ids = default(found)
    return [case.id in ids for case in _scripts(found)]


def _cases_of(subject: Subject) -> list[Case]:
    return cases(subject, FOLDER / subject.contract_name.replace("-", "_"))


def _scripts(found: list[Case]) -> list[Case]:
    """Return the scripts of the default profile as they are dealt: those of four ranks come last."""
    scripts = [case for case in found if case.law.id == "crossings" and case.point.turns]
    return sorted(scripts, key=lambda case: case.point.size > 3)


def _dealt_to(contract: str) -> list[Subject]:
    """Return the subjects of this repository to which scripts are dealt, but the one that does nothing."""
    real = [subject for subject in _of_torch() if not subject.exemplar and subject.name != "nothing"]
    return [
        subject
        for subject in real
        if subject.contract_name == contract
        and (subject.variant_of is None or "crossings" in subject.touches)
        and _scripts(_cases_of(subject))
    ]


def test_a_row_that_is_registered_changes_nothing_for_the_others() -> None:
    before, row = default(cases(TRAINER)), optimizers.row("SGD")
    mine = optimizers.register(replace(row, optimizer=type("Aardvark", (row.optimizer,), {})))
    try:
        after = default(cases(TRAINER))
    finally:
        optimizers.unregister(mine.name)
    added = after - before
    assert before <= after
    assert added
    assert all("Aardvark" in case for case in added)


def test_each_statement_of_a_ledger_and_each_lack_is_seen_in_the_default_profile() -> None:
    for subject in _of_torch():
        found = _cases_of(subject)
        chosen = _chosen(found, default(found))
        stated = {case.entry.statement for case in found if case.entry}
        assert {case.entry.statement for case in chosen if case.entry} == stated, subject.name
        assert {id(case.lack) for case in chosen if case.lack} == {id(case.lack) for case in found if case.lack}


_KNOWN = """
[[known]]
case = {cases}
kind = "fail"
match = "off by"
issue = "unreported"
"""

_ALL_OF_SGD = '["parity.train[SGD-*]", "parity.groups[SGD-*]"]'


def _known_in_default(folder: Path, known: str, shared: bool = False) -> list[Case]:
    """Return the cases of the default profile that have an entry."""
    (folder / "mine.toml").write_text(known)
    found = cases(replace(TRAINER, known="mine.toml"), folder)
    if shared:  # as if the ledger were another subject's
        theirs = {case.id: replace(case.entry, shared="torch:ddp") for case in found if case.entry}
        found = [replace(case, entry=theirs.get(case.id)) for case in found]
    return [case for case in _chosen(found, default(found)) if case.entry]


def test_of_an_entry_that_lists_cases_one_is_in_the_default_profile(tmp_path: Path) -> None:
    assert len(_known_in_default(tmp_path, _KNOWN.format(cases=_ALL_OF_SGD))) == 1


def test_of_two_entries_each_has_a_case_in_the_default_profile(tmp_path: Path) -> None:
    first, second = (_KNOWN.format(cases=f'"parity.{law}[SGD-*]"') for law in ("train", "groups"))
    assert [case.law.id for case in _known_in_default(tmp_path, first + second)] == ["parity.train", "parity.groups"]


def test_a_law_that_is_known_to_be_broken_throughout_has_a_case_in_the_default_profile(tmp_path: Path) -> None:
    chosen = _known_in_default(tmp_path, _KNOWN.format(cases='["parity.train[*]", "parity.groups[*]"]'))
    assert {"parity.train", "parity.groups"} <= {case.law.id for case in chosen}


def test_what_is_known_of_another_subject_takes_part_in_the_rotation(tmp_path: Path) -> None:
    assert len(_known_in_default(tmp_path, _KNOWN.format(cases=_ALL_OF_SGD), shared=True)) > 2


def test_a_variant_has_the_laws_that_its_difference_touches_and_takes_turns_with_the_others() -> None:
    seen: set[str] = set()
    for number in range(12):
        found = cases(replace(TRAINER, name=f"mine.Hook-{number}", variant_of=TRAINER, touches=("mean", "state.*")))
        (alone,) = _chosen(found, quick(found))
        assert alone.law.id == "mean"
        chosen = _chosen(found, default(found))
        counts = {law: sum(case.law.id == law for case in chosen) for law in _laws(found)}
        assert min(counts.pop("mean"), counts.pop("state.reshard")) > 1
        others = {law for law, count in counts.items() if count and not law.startswith("state.")}
        assert {counts[law] for law in others} == {1}
        assert 0 < len(others) < len(counts) / 2
        seen |= others
    assert seen == {law for law in counts if not law.startswith("state.")}


def _laws(found: list[Case]) -> set[str]:
    return {case.law.id for case in found}


def test_an_exemplar_has_its_core_cases() -> None:
    found = cases(replace(RPC, exemplar=True))
    assert len(quick(found)) == 1
    assert default(found) == {case.id for case in found if case.point.core}


@pytest.mark.parametrize("only", [{"variant_of": TRAINER}, {"touches": ("mean",)}], ids=["variant_of", "touches"])
def test_a_variant_names_what_its_difference_touches(only: dict[str, object]) -> None:
    with pytest.raises(DeclarationError, match="variant_of and touches go together"):
        replace(TRAINER, **only)  # type: ignore[arg-type]
