"""Print a diff: as text for a terminal, as Markdown for a pull request or a CI summary, or as JSON for programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from everyrank.model.counts import count
from everyrank.model.outcome import ENDINGS
from everyrank.reports.diff.diff import KINDS, WORSE, Change, Diff, Kind, LessExact
from everyrank.reports.diff.groups import ChangeGroup, groups, short_names
from everyrank.reports.diff.notice import NoticesLess, noticed
from everyrank.reports.diff.withstand import WithstandsLess
from everyrank.reports.runfile.model import CaseLine, ErrorPart
from everyrank.reports.runfile.read import Run
from everyrank.reports.runfile.source import of_header
from everyrank.reports.text import code, duration, plain, some, ulps_text

#: The names of each kind of change: singular and plural.
_NOUNS: dict[Kind, tuple[str, str]] = {
    "regression": ("regression", "regressions"),
    "stale": ("stale declaration", "stale declarations"),
    "fix": ("fix", "fixes"),
    "changed": ("case of another kind", "cases of another kind"),
    "new": ("new case", "new cases"),
    "gone": ("case gone", "cases gone"),
}

#: Kinds of change that are printed with their reason.
_WITH_REASON: frozenset[Kind] = frozenset(("regression", "stale", "changed"))

#: The limit of a failure's first line, in characters.
_MESSAGE = 160
#: How many new troubles are named. JSON lists all.
_TROUBLES = 20
#: How many laws are named for each case that is named of a law.
_LAWS = 4


def as_text(diff: Diff, most: int = 5) -> str:
    """Return the text for a terminal. It names up to ``most`` cases and laws, or all if ``most`` is 0."""
    lines = [f"old: {_run(diff.old)}", f"new: {_run(diff.new)}", *_differences(diff), ""]
    for kind in KINDS:
        changes = diff.of_kind(kind)
        if changes:
            lines += [heading(kind, len(changes)), *_text_groups(changes, most, kind in _WITH_REASON), ""]
    lines += _text_pace(diff, most)
    if diff.less_exact:
        lines += _less_exact(diff)
        lines += [f"  {text}" for text in some([_less(pair, plain) for pair in diff.less_exact], most)]
        lines.append("")
    if diff.notices_less:
        lines += _notices_less(diff)
        lines += [f"  {text}" for text in some([_unnoticed(less, plain) for less in diff.notices_less], most)]
        lines.append("")
    if diff.withstands_less:
        lines += _withstands_less(diff)
        lines += [f"  {text}" for text in some([_fails_at(less, plain) for less in diff.withstands_less], most)]
        lines.append("")
    lines.append(verdict(diff))
    return "\n".join(lines) + "\n"


def as_markdown(diff: Diff, most: int = 5) -> str:
    """Return Markdown for a pull request or a CI summary. Regressions come first; the rest is folded."""
    # A run that is still red never gets a tick.
    sign = ":x:" if not diff.passed else ":white_check_mark:" if diff.new.conclusion.as_declared else ":warning:"
    lines = [f"### {sign} everyrank: {verdict(diff)}", "", *_counts_table(diff), ""]
    runs = (f"Old: {_run(diff.old, code)}", f"New: {_run(diff.new, code)}")
    lines += [line for part in (*runs, *_differences(diff, code)) for line in (part, "")]
    if diff.pace.slower:
        lines += [_slower_run(diff), ""]
    for kind in KINDS:
        changes = diff.of_kind(kind)
        if changes:
            items = list(_markdown_groups(changes, most, kind in _WITH_REASON))
            lines += _folded(heading(kind, len(changes)), items, kind in WORSE)
    slower = [f"- {text}" for text in some([*_slow_laws(diff, code), *_slow_cases(diff, code)], most)]
    if slower:
        lines += _folded(", ".join(_slower(diff)), slower)
    if diff.less_exact:
        less = [f"- {text}" for text in some([_less(pair, code) for pair in diff.less_exact], most)]
        lines += _folded(", ".join(_less_exact(diff)), less)
    if diff.notices_less:
        unnoticed = [f"- {text}" for text in some([_unnoticed(less, code) for less in diff.notices_less], most)]
        lines += _folded(", ".join(_notices_less(diff)), unnoticed, opened=True)
    if diff.withstands_less:
        points = [f"- {text}" for text in some([_fails_at(less, code) for less in diff.withstands_less], most)]
        lines += _folded(", ".join(_withstands_less(diff)), points, opened=True)
    return "\n".join(lines).rstrip() + "\n"


def as_json(diff: Diff) -> str:
    """Return JSON for programs: all changes, with the ids of the cases."""
    data = {
        "passed": diff.passed,
        "regressed": diff.regressed,
        "state": diff.new.conclusion.state,
        "still_red": diff.still_red,
        "new_troubles": diff.new_troubles,
        "old": _run_data(diff.old),
        "new": _run_data(diff.new),
        "counts": {kind: len(diff.of_kind(kind)) for kind in KINDS},
        "changes": [_change_data(change) for change in diff.changes],
        "pace": {
            "old": diff.pace.old,
            "new": diff.pace.new,
            "ratio": diff.pace.ratio,
            "laws": [msgspec.to_builtins(law) for law in diff.pace.laws],
            "cases": [
                {**_case_data(slow.new), "old": slow.old.seconds, "new": slow.new.seconds, "ratio": slow.ratio}
                for slow in diff.pace.cases
            ],
        },
        "less_exact": [
            {**_case_data(pair.case), "old": msgspec.to_builtins(pair.old), "new": msgspec.to_builtins(pair.new)}
            for pair in diff.less_exact
        ],
        "notices_less": [{**_case_data(less.case), "survivors": less.survivors} for less in diff.notices_less],
        "withstands_less": [{**_case_data(less.case), "points": less.points} for less in diff.withstands_less],
    }
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


def heading(kind: Kind, number: int) -> str:
    """Return the number and the name of a kind of change: ``3 regressions``."""
    return f"{number:,} {_NOUNS[kind][number != 1]}"


def verdict(diff: Diff) -> str:
    """Return one line that counts each kind of change that occurred, and says whether the run is still red."""
    kinds = {kind: heading(kind, number) for kind in KINDS if (number := len(diff.of_kind(kind)))}
    red = [text for kind, text in kinds.items() if kind in WORSE]
    red += [*_new_troubles(diff), *(["nothing ran"] if diff.nothing_ran else []), *_still_red(diff)]
    if red and not diff.regressed and not diff.nothing_ran:
        red.insert(0, "no regression")
    rest = [text for kind, text in kinds.items() if kind not in WORSE]
    return (
        ", ".join([*red, *rest, *_slower(diff), *_less_exact(diff), *_notices_less(diff), *_withstands_less(diff)])
        or "no change"
    )


def _new_troubles(diff: Diff) -> list[str]:
    return [f"{count(len(diff.new_troubles), 'new trouble')} beside the cases"] if diff.new_troubles else []


def _still_red(diff: Diff) -> list[str]:
    """List what was red in both runs, and say if the new run is not whole."""
    parts = [f"{diff.still_red:,} still red since {_since(diff)}"] if diff.still_red else []
    beside = sum(len(reason.details) for reason in diff.new.conclusion.beside)
    if (same := beside - len(diff.new_troubles)) > 0:
        parts.append(f"{count(same, 'trouble')} beside the cases as before")
    return [*parts, *([] if diff.new.complete else ["the new run is not whole"])]


def _since(diff: Diff) -> str:
    old, new = (time.gmtime(run.header.started) for run in (diff.old, diff.new))
    return time.strftime("%m-%d" if old.tm_year == new.tm_year else "%Y-%m-%d", old)


# --- the parts that the forms share ------------------------------------------------------------------


def _run(run: Run, quote: Callable[[str], str] = plain) -> str:
    head = run.header
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(head.started))
    counts = ", ".join(f"{number:,} {ending}" for ending, number in run.counts.items())
    whole = "" if run.complete else f" NOT WHOLE, {run.came}:"
    beside = "".join(f"; {reason.brief}" for reason in run.conclusion.beside)
    source = of_header(head)
    origin = f", {quote(str(source))}" if str(source) else ""
    if source.web_link:
        origin += f", [CI run]({source.web_link})" if quote is code else f", {source.web_link}"
    facts = f"{when} UTC, torch {plain(head.torch)}{origin}"
    return f"{quote(str(run.path))} ({facts}):{whole} {counts or 'no cases'}{beside}"


def _differences(diff: Diff, quote: Callable[[str], str] = plain) -> Iterator[str]:
    """Yield the differences between the two runs that may be a cause, such as another version of torch."""
    old, new = diff.old.header, diff.new.header
    for name in ("kit", "torch", "python", "platform", "launcher", "seed", "devices", "backends", "workers"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            yield f"{name}: {quote(_value(before))} -> {quote(_value(now))}"
    yield from some([f"new trouble: {quote(trouble)}" for trouble in diff.new_troubles], _TROUBLES)


def _value(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def _slower(diff: Diff) -> list[str]:
    parts = (("law", len(diff.pace.laws)), ("case", len(diff.pace.cases)))
    return [f"{count(number, noun)} slower" for noun, number in parts if number]


def _less_exact(diff: Diff) -> list[str]:
    return [f"{count(len(diff.less_exact), 'case')} less exact"] if diff.less_exact else []


def _notices_less(diff: Diff) -> list[str]:
    number = len(diff.notices_less)
    return [f"{count(number, 'case')} {'notices' if number == 1 else 'notice'} less"] if number else []


def _withstands_less(diff: Diff) -> list[str]:
    number = len(diff.withstands_less)
    return [f"{count(number, 'case')} {'withstands' if number == 1 else 'withstand'} less"] if number else []


def _slower_run(diff: Diff) -> str:
    both = f"{duration(diff.pace.old)} -> {duration(diff.pace.new)}"
    return f"the whole run is slower: {both}, the median case {diff.pace.ratio:.1f}x"


def _text_groups(changes: list[Change], most: int, with_reason: bool) -> Iterator[str]:
    all_groups = groups(changes)
    for group in all_groups[: most * _LAWS or None]:
        shown = some(short_names(group), most)
        yield f"  {plain(group.name)}: {count(len(group.changes), 'case')} {group.step_text}"
        if group.subjects:
            yield f"    {plain(', '.join(some(list(group.subjects), most)))}"
        if any(shown):
            yield f"    {plain(', '.join(shown))}"
        case = group.changes[0].case
        if with_reason and case.message:
            yield f"    {plain(case.message, _MESSAGE)}"
        if with_reason and case.repeat:
            yield f"    to repeat: {plain(case.repeat)}"
    if most and (more := all_groups[most * _LAWS :]):
        yield f"  {_and_more(more)}"


def _quoted(names: list[str], most: int) -> str:
    """Return the first names as code, and the number of the others."""
    shown = names[: most or None]
    more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    return text + more if (text := ", ".join(code(name, 200) for name in shown if name)) else ""


def _and_more(more: list[ChangeGroup]) -> str:
    return f"... and {count(sum(len(group.changes) for group in more), 'case')} in {count(len(more), 'more group')}"


def _markdown_groups(changes: list[Change], most: int, with_reason: bool) -> Iterator[str]:
    all_groups = groups(changes)
    for group in all_groups[: most * _LAWS or None]:
        shown = _quoted(short_names(group), most)
        named = f": {shown}" if shown else ""
        yield f"- {code(group.name)}: {count(len(group.changes), 'case')} **{group.step_text}**{named}"
        if group.subjects:
            yield f"  - {_quoted(list(group.subjects), most)}"
        case = group.changes[0].case
        if with_reason and case.message:
            yield f"  - {code(case.message, _MESSAGE)}"
        if with_reason and case.repeat:
            yield f"  - to repeat: {code(case.repeat, 400)}"
    if most and (more := all_groups[most * _LAWS :]):
        yield f"- {_and_more(more)}"


def _text_pace(diff: Diff, most: int) -> Iterator[str]:
    speed = diff.pace
    if speed.slower:
        yield _slower_run(diff)
    for noun, texts in (("law", list(_slow_laws(diff, plain))), ("case", list(_slow_cases(diff, plain)))):
        if texts:
            yield f"{count(len(texts), noun)} slower" + (" than that" if speed.slower else "")
            yield from (f"  {text}" for text in some(texts, most))
    if speed.slower or speed.laws or speed.cases:
        yield ""


def _slow_laws(diff: Diff, quote: Callable[[str], str]) -> Iterator[str]:
    for law in diff.pace.laws:
        name = quote(f"{law.subject} {law.contract}/{law.law}")
        yield (
            f"{name}: the median of {count(law.cases, 'case')} {duration(law.old)} -> {duration(law.new)} "
            f"({law.ratio:.1f}x)"
        )


def _slow_cases(diff: Diff, quote: Callable[[str], str]) -> Iterator[str]:
    for slow in diff.pace.cases:
        name = quote(_full(slow.new))
        yield f"{name}: {duration(slow.old.seconds)} -> {duration(slow.new.seconds)} ({slow.ratio:.1f}x)"


def _full(case: CaseLine) -> str:
    return f"{case.subject} {case.case}" if case.subject else case.id


def _less(pair: LessExact, quote: Callable[[str], str]) -> str:
    old, new = pair.old, pair.new
    location = quote(f"{new.name}, step {new.step}, rank {new.rank}")
    return f"{quote(_full(pair.case))}: {_error(old)} -> {_error(new)} at {location}"


def _unnoticed(less: NoticesLess, quote: Callable[[str], str]) -> str:
    changes = "; ".join(some([quote(text) for text in less.survivors], 3))
    return f"{quote(_full(less.case))}: {noticed(less.old)} changes -> {noticed(less.new)}: not if {changes}"


def _fails_at(less: WithstandsLess, quote: Callable[[str], str]) -> str:
    points = "; ".join(some([quote(text) for text in less.points], 3))
    return f"{quote(_full(less.case))}: {quote(less.fault)}: fails now at {points}"


def _error(error: ErrorPart) -> str:
    if error.relative == 0:
        return "exact"
    ulps = ulps_text(float(f"{error.ulps:.3g}"))
    return f"{error.relative:.2g}" + (f" ({ulps})" if ulps else "")


def _counts_table(diff: Diff) -> Iterator[str]:
    yield "| outcome | old | new | |"
    yield "|---|--:|--:|--:|"
    for ending in ENDINGS:
        before, now = diff.old.counts.get(ending, 0), diff.new.counts.get(ending, 0)
        if before or now:
            yield f"| {ending} | {before:,} | {now:,} | {f'{now - before:+,}' if now != before else ''} |"


def _folded(title: str, lines: list[str], opened: bool = False) -> list[str]:
    return [f"<details{' open' if opened else ''}><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _run_data(run: Run) -> dict[str, Any]:
    return {
        "file": str(run.path),
        "complete": run.complete,
        "started": run.header.started,
        "kit": run.header.kit,
        "torch": run.header.torch,
        "source": msgspec.to_builtins(of_header(run.header)),
        "counts": run.counts,
    }


def _case_data(case: CaseLine) -> dict[str, Any]:
    return {name: getattr(case, name) for name in ("id", "subject", "contract", "law", "case", "optimizer")}


def _change_data(change: Change) -> dict[str, Any]:
    before, now = change.step
    case = change.case
    more = {"was": change.old.id} if change.old and change.old.id != case.id else {}
    return {
        "kind": change.kind,
        **_case_data(case),
        **more,
        "from": before,
        "to": now,
        "message": case.message,
        "repeat": case.repeat,
    }
