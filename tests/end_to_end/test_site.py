"""The site: its first page, what its search finds, and how it looks on a phone. Two of its pages are built."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import Browser

pytest.importorskip("sphinx", reason="the site's packages are those of the group docs")

_ROOT = Path(__file__).parents[2]
_PAGES = ("docs/index.md", "docs/debugging.md", "docs/reference.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-Q", "-c", "docs", "-D", f"include_patterns={','.join(_PAGES)}"]
    subprocess.run([*command, ".", folder], cwd=_ROOT, check=True)
    return folder


def test_the_page_at_the_top_leads_to_the_first_page(site: Path) -> None:
    page = site / "index.html"
    target = re.search(r'content="0; url=(.*)"', page.read_text() if page.exists() else "")
    assert target, "a site without a page at the top"
    assert "<h1>everyrank" in (site / target[1]).read_text()


def test_a_search_for_deadlock_finds_a_heading_of_the_page_about_failures(site: Path) -> None:
    """Sphinx counts a heading more than text."""
    index = json.loads((site / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    found: Any = index["titleterms"].get("deadlock", [])
    assert index["docnames"].index("docs/debugging") in (found if isinstance(found, list) else [found])


def test_a_phone_cuts_no_table(site: Path, browser: Browser) -> None:
    browser.resize(400, 800)
    for page in (site / "genindex.html", site / "docs/debugging.html"):
        browser.driver.get(page.as_uri())
        cut = browser.js(
            """return [...document.querySelectorAll("article table")].filter((table) => {
                const box = table.parentElement;
                return table.offsetWidth > box.clientWidth && getComputedStyle(box).overflowX !== "auto";
            }).map((table) => table.textContent)"""
        )
        assert cut == []
