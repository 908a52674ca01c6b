"""Write a board as one HTML file, which needs no other, or as a table of Markdown for a document."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from importlib.resources import files

from everyrank.model.counts import count
from everyrank.model.outcome import ENDINGS, RED
from everyrank.reports.board.board import Cell, Row, Table
from everyrank.reports.page.build import GENERATOR, hash_of
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.text import plain

_SLOT = re.compile(r"\{\{(\w+)\}\}")
#: How many cases of a cell are shown whole, and the characters of a failure.
_SHOWN, _LONGEST = 20, 4000
#: What a ledger's entry has as its issue if nobody was asked.
_UNREPORTED = "unreported"


def as_html(tables: Sequence[Table], title: str = "") -> str:
    style, script = _text("board.css"), _text("board.js")
    rows = [row for table in tables for row in table.rows]
    slots = {
        "generator": html.escape(f"{GENERATOR} {rows[0].run.header.kit}"),
        "title": html.escape(title or "everyrank: board"),
        "policy": f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; base-uri 'none'",
        "style": style,
        "script": script,
        "sentence": html.escape(_sentence(rows)),
        "packages": _options(_packages(rows)),
        "outcomes": _options(_outcomes(rows)),
        "tables": "\n".join(_table(table) for table in tables),
    }
    # One pass: the contents of a slot are never searched for other slots.
    return _SLOT.sub(lambda slot: slots[slot[1]], _text("board.html"))


def as_markdown(tables: Sequence[Table]) -> str:
    """Return a table for each contract: for each subject and group of laws, how many cases hold of those asked."""
    lines = []
    for table in tables:
        lines += [f"### {table.contract}", "", f"| subject | package | {' | '.join(table.groups)} | all |"]
        lines.append("|---" * (len(table.groups) + 3) + "|")
        for row in table.rows:
            cells = [_plain_cell(row.cells.get(group)) for group in table.groups]
            package = row.package or f"torch {row.run.header.torch}"
            lines.append(
                f"| {plain(row.subject)} | {plain(package)} | {' | '.join(cells)} | {_plain_cell(row.total)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _plain_cell(cell: Cell | None) -> str:
    return "" if cell is None else _in_short(cell).replace("/", " of ")


def _sentence(rows: Sequence[Row]) -> str:
    red = [row for row in rows if row.total.red]
    asked = sum(row.total.asked for row in rows)
    first = f"{count(len(rows), 'subject')}, {count(asked, 'case')}"
    return f"{first}; {len(red)} with a red case" if red else f"{first}; none has a red case"


def _packages(rows: Iterable[Row]) -> list[str]:
    return sorted({row.package for row in rows if row.package})


def _outcomes(rows: Iterable[Row]) -> list[str]:
    endings = {ending for row in rows for ending in row.total.counts}
    return [ending for ending in ENDINGS if ending in endings]


def _options(names: Iterable[str]) -> str:
    shown = [html.escape(name, quote=True) for name in names]
    return "".join(f'<option value="{name}">{name}</option>' for name in shown)


def _table(table: Table) -> str:
    heads = "".join(f"<th scope=col>{html.escape(group)}</th>" for group in table.groups)
    body = "\n".join(_row(table, row) for row in table.rows)
    return (
        f"<section><h2>{html.escape(table.contract)}</h2><div class=wide><table><thead><tr>"
        f"<th scope=col>subject</th><th scope=col>all</th>{heads}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
        "</section>"
    )


def _row(table: Table, row: Row) -> str:
    header = row.run.header
    night = datetime.fromtimestamp(header.started, timezone.utc).strftime("%Y-%m-%d")
    about = ", ".join(filter(None, (row.package, f"torch {header.torch}", night)))
    cells = "".join(_cell(row, group, row.cells.get(group)) for group in table.groups)
    words = html.escape(f"{row.subject} {row.package}".lower(), quote=True)
    outcomes = " ".join(row.total.counts)
    return (
        f'<tr data-words="{words}" data-package="{html.escape(row.package, quote=True)}" data-outcomes="{outcomes}">'
        f"<th scope=row>{html.escape(plain(row.subject))}<small>{html.escape(plain(about))}</small></th>"
        f"{_cell(row, 'all laws', row.total, opens=False)}{cells}</tr>"
    )


def _cell(row: Row, group: str, cell: Cell | None, opens: bool = True) -> str:
    if cell is None:
        return "<td class=none></td>"
    counts = ", ".join(f"{cell.counts[ending]} {ending}" for ending in ENDINGS if cell.counts[ending])
    heading = html.escape(f"{row.subject}, {group}: {counts}", quote=True)
    shown = _in_short(cell)
    changed = f"<b>{cell.change:+d} red</b>" if cell.change else ""
    if not opens or not cell.opened:
        return f'<td class="{cell.worst}" title="{heading}">{shown}{changed}</td>'
    cases = "".join(_case(case) for case in _urgent_first(cell.opened)[:_SHOWN])
    more = len(cell.opened) - _SHOWN
    cases += f"<p>... and {count(more, 'case')} more</p>" if more > 0 else ""
    return (
        f'<td class="{cell.worst}"><details><summary title="{heading}">{shown}{changed}</summary>'
        f"<div class=cases><p>{heading}</p>{cases}</div></details></td>"
    )


def _in_short(cell: Cell) -> str:
    """Return how many cases hold, of those that the subject claims; ``lacks`` if it claims none of them."""
    claimed = cell.asked - cell.counts["unsupported"]
    if not claimed:
        return "lacks" if cell.asked else "-"
    return str(claimed) if cell.holds == claimed else f"{cell.holds}/{claimed}"


def _urgent_first(cases: Iterable[CaseLine]) -> list[CaseLine]:
    return sorted(cases, key=lambda case: ENDINGS.index(case.outcome))


def _case(case: CaseLine) -> str:
    parts = [f"<h3><span class={case.outcome}>{case.outcome}</span> {html.escape(plain(case.case or case.id))}</h3>"]
    parts += [f"<p>{html.escape(plain(part))}</p>" for part in _reasons(case)]
    parts += [f'<p><a href="{html.escape(link, quote=True)}">{html.escape(link)}</a></p>' for link in _links(case)]
    if case.outcome in RED and case.text:
        parts.append(f"<pre>{html.escape(case.text[:_LONGEST])}</pre>")
    if case.repeat:
        parts.append(f"<pre>{html.escape(case.repeat)}</pre>")
    return f"<article>{''.join(parts)}</article>"


def _reasons(case: CaseLine) -> Iterator[str]:
    """Yield what happened, and what a person found out about it."""
    yield case.message or "without a message"
    if case.ledger is None:
        yield "not looked into"
        return
    yield case.ledger.note or "not looked into"
    if case.ledger.issue == _UNREPORTED:
        yield "not reported"


def _links(case: CaseLine) -> list[str]:
    if case.ledger is None:
        return []
    return [link for link in (case.ledger.issue, case.ledger.link) if link.startswith(("https://", "http://"))]


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
