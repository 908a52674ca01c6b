"""A headless Chromium for tests of the page: Debian's own, with the driver that comes with it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import pytest

T = TypeVar("T")

#: Seconds to wait for a state of the page, before the wait fails.
PATIENCE = 60
_INSTALL = "apt-get install chromium chromium-driver"
_MISSING = f"no Chromium here: {_INSTALL}"


def found() -> tuple[str, str] | None:
    """Where the browser and its driver are, if both are here."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def line(skipped: Iterable[pytest.TestReport]) -> str:
    """Return the line about the tests that were skipped for want of a browser; empty if there was none."""
    missed = sum(_MISSING in str(report.longrepr) for report in skipped)
    tests = "1 test was" if missed == 1 else f"{missed} tests were"
    return f"{tests} skipped, since Chromium or its driver is not here; to run them: {_INSTALL}" if missed else ""


class Browser:
    """One browser, and the page that it shows."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, **state: str) -> None:
        """Open a page at an address, wide and light, with nothing kept from before."""
        self.resize(1440, 900)
        self.media()
        self.driver.get("about:blank")
        self.driver.get_log("browser")  # what earlier pages said is not this one's
        self.driver.get(f"{page.as_uri()}#{urlencode(state)}")
        self.wait(lambda: self.js("return document.documentElement.dataset.ready"))

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def wait(self, until: Callable[[], T]) -> T:
        """Ask again until it is so."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(
            self.driver, PATIENCE, poll_frequency=0.02, ignored_exceptions=[StaleElementReferenceException]
        )
        return waiting.until(lambda _: until())  # type: ignore[no-any-return]

    def all(self, selector: str) -> list[Any]:
        from selenium.webdriver.common.by import By

        return self.driver.find_elements(By.CSS_SELECTOR, selector)  # type: ignore[no-any-return]

    def find(self, selector: str) -> Any:
        return self.wait(lambda: next(iter(self.all(selector)), None))

    def click(self, selector: str) -> None:
        self.find(selector).click()

    def keys(self, *keys: str) -> None:
        """To whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def text(self, selector: str) -> str:
        return str(self.find(selector).text)

    def texts(self, selector: str) -> list[str]:
        found = self.js(
            "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector
        )
        return list(found)

    def choose(self, field: str, value: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.find(f"#filter-{field}")).select_by_value(value)

    def back(self) -> None:
        self.driver.back()

    def state(self) -> dict[str, str]:
        """The address, in parts."""
        code = "return Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"
        return dict(self.js(code))

    def case_opened(self) -> str:
        """Return the drawer's text, once its details are there."""
        self.wait(lambda: not self.js("return document.querySelector('#drawer .rest > p.faint')"))
        return str(self.find("#drawer").text)

    def resize(self, width: int, height: int) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, kind: str = "", scheme: str = "light") -> None:
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        given = [{"name": name, "value": value} for name, value in features.items()]
        self.cdp("Emulation.setEmulatedMedia", media=kind, features=given)

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def complaints(self) -> list[str]:
        """What the browser has to say of the page: errors, and what the policy refused."""
        return [line["message"] for line in self.driver.get_log("browser")]

    def data(self) -> Any:
        return json.loads(self.js("return document.getElementById('data').textContent"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    here = found()
    if here is None:
        # Where it is known to be installed, tests that skip themselves would be tests that never run.
        if os.environ.get("EVERYRANK_TESTS_NEED_CHROMIUM"):
            pytest.fail(_MISSING)
        pytest.skip(_MISSING)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = here[0]
    # Tests may run as root, where the sandbox cannot; the pages are ours, and come from the disk.
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-proxy-server",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(here[1]))
    try:
        driver.set_page_load_timeout(PATIENCE)
        yield Browser(driver)
    finally:
        driver.quit()
