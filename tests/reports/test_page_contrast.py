"""Contrast as WCAG 2 computes it, at level AA: of the colours that the page has, and of all text that it shows."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from everyrank.reports.page.outcomes import SHOWN, SHOWN_RED

from tests.chromium import Browser
from tests.made_up_runs import made_up
from tests.pages import write

TOKENS = files("everyrank.reports.page").joinpath("css", "tokens.css").read_text()
#: Text, and what has the meaning of text; shapes and lines need less.
TEXT, SHAPES = 4.5, 3.0

GROUNDS = ("paper", "panel", "raised", "hover")
OUTCOMES = tuple(f"o-{outcome}" for outcome in SHOWN)
PAIRS = [
    (TEXT, ("ink", "soft", "faint"), (*GROUNDS, "hair", "wash-red", "wash-known")),
    (TEXT, ("accent",), (*GROUNDS, "hair")),
    (TEXT, OUTCOMES, GROUNDS),
    (TEXT, tuple(f"o-{outcome}" for outcome in sorted(SHOWN_RED)), ("wash-red", "wash-red-hover")),
    (TEXT, ("o-known",), ("wash-known",)),
    (TEXT, ("panel",), ("ink",)),
    (SHAPES, OUTCOMES, ("hair", "wash-red", "wash-known")),
    (SHAPES, ("o-known",), ("wash-known-hover",)),
    (SHAPES, ("ring",), GROUNDS),
    (SHAPES, tuple(f"scale-{step}" for step in range(6)), ("panel",)),
    (SHAPES, tuple(f"many-{step}" for step in range(8)), ("panel", "raised")),
]


def _theme(selector: str) -> dict[str, str]:
    block = re.search(rf"^{re.escape(selector)} {{(.*?)^}}", TOKENS, re.MULTILINE | re.DOTALL)
    assert block is not None
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[1]))


LIGHT = _theme(":root")
THEMES = {"light": LIGHT, "dark": {**LIGHT, **_theme(':root[data-theme="dark"]')}}


def _luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    dark, light = sorted((_luminance(first), _luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_the_formula_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_every_colour_stands_out_from_the_grounds_that_it_is_seen_on(theme: str) -> None:
    colours = THEMES[theme]
    faint = [
        f"{ink} on {ground}: {found:.2f} < {least}"
        for least, inks, grounds in PAIRS
        for ink in inks
        for ground in grounds
        if (found := contrast(colours[ink], colours[ground])) < least
    ]
    assert faint == []


def test_no_two_outcomes_have_one_colour() -> None:
    for colours in THEMES.values():
        assert len({colours[name] for name in OUTCOMES}) == len(OUTCOMES)


#: All text in sight that stands out too little from the nearest ground below it.
FAINT = """
    const light = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const luminance = ([r, g, b]) => 0.2126 * light(r / 255) + 0.7152 * light(g / 255) + 0.0722 * light(b / 255);
    const mixed = (over, under, share) => over.map((part, at) => part * share + under[at] * (1 - share));
    function ground(node) {
      for (; node; node = node.parentElement) {
        const [r, g, b, alpha = 1] = parts(getComputedStyle(node).backgroundColor);
        if (alpha === 1) return [r, g, b];
      }
      return [255, 255, 255];
    }
    const found = new Set();
    for (const node of document.querySelectorAll("body *")) {
      const own = [...node.childNodes].some((element) => element.nodeType === 3 && element.data.trim());
      if (!own || !node.checkVisibility() || node.closest("script, [disabled], option, optgroup")) continue;
      const style = getComputedStyle(node);
      const below = ground(node);
      let share = 1;
      for (let at = node; at; at = at.parentElement) share *= Number(getComputedStyle(at).opacity);
      const ink = parts(node instanceof SVGElement ? style.fill : style.color).slice(0, 3);
      const [dark, bright] = [luminance(mixed(ink, below, share)), luminance(below)].sort((a, b) => a - b);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      const ratio = (bright + 0.05) / (dark + 0.05);
      if (ratio < (large ? 3 : 4.5)) found.add(`${node.tagName} .${node.className}: ${ratio.toFixed(2)}`);
    }
    return [...found];
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(made_up(seed=2, cases=400), tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_that_is_shown_stands_out(browser: Browser, report: Path, scheme: str) -> None:
    run = made_up(seed=2, cases=400)
    late = next(line.id for line in run.cases if line.outcome == "timeout")
    wrong = next(line.id for line in run.cases if line.outcome == "fail" and line.steps)
    for state in (
        {}, {"view": "cases"}, {"view": "time"}, {"view": "findings"}, {"case": late}, {"case": wrong},
        {"outcome": "known", "view": "matrix"},
    ):  # fmt: skip
        browser.open(report, **state)
        browser.media(scheme=scheme)
        browser.wait(lambda: browser.js("return document.documentElement.dataset.theme") == scheme)
        if "case" in state:
            browser.case_opened()
        assert browser.js(FAINT) == [], state
    browser.keys("\ue00c", "?")
    assert browser.js(FAINT) == []


def test_a_cell_of_known_deviations_is_amber(browser: Browser, report: Path) -> None:
    browser.open(report, outcome="known")
    ground, known = browser.js("""
        const cell = document.querySelector('.cell[data-outcome="known"]');
        const probe = document.createElement("i");
        probe.style.background = "var(--wash-known)";
        document.body.append(probe);
        return [cell, probe].map((element) => getComputedStyle(element).backgroundColor);
    """)
    assert ground == known
    red, green, blue = (int(part) for part in re.findall(r"\d+", ground)[:3])
    assert red > green > blue
