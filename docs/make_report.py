"""Photograph the lanes of the first example, for the documentation: needs Chromium, selenium.

``python docs/make_report.py`` writes ``docs/report.png``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium import webdriver

DOCS = Path(__file__).parent
EXAMPLE = DOCS.parent / "examples" / "test_a_changed_in_a_worker.py"
WIDTH = 900


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("--gradguard", "--gradguard-fail-on=never", f"--gradguard-html={page}"),
                EXAMPLE.name,
            ],
            cwd=EXAMPLE.parent,
            check=True,
        )
        options = webdriver.ChromeOptions()
        for argument in ("--headless", "--no-sandbox", f"--window-size={WIDTH},1400"):
            options.add_argument(argument)
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
        try:
            driver.get(page.as_uri())
            lanes = driver.find_element("css selector", ".gg-lanes")
            lanes.screenshot(str(DOCS / "report.png"))
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
