"""A browser for tests of pages; they are skipped without Chromium and chromedriver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a Chromium without a window, as a driver of selenium."""
    webdriver = pytest.importorskip("selenium.webdriver")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    service = shutil.which("chromedriver")
    if browser is None or service is None:
        pytest.skip("there is no Chromium with its chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=service)
    )
    try:
        yield started
    finally:
        started.quit()
