"""The page as a browser shows it: light and dark, on a phone, by keyboard, with many findings.

Pictures of it are kept in the folder that GRADGUARD_PICTURES names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import chromium
from test_html_page import PROGRAM, loss, repaired

from pytest_gradguard import pitfalls
from pytest_gradguard.findings import Finding, Location, Severity
from pytest_gradguard.reports.file import write_page
from pytest_gradguard.reports.page import answer, fragment
from pytest_gradguard.tallies import Tally

PHONE, DESK = 390, 1200

CONTRAST = """
const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const behind = (element) => {
  for (; element; element = element.parentElement) {
    const colour = numbers(getComputedStyle(element).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const low = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !element.checkVisibility() || element.matches("script, option")) continue;
  const [a, b] = [numbers(getComputedStyle(element).color), behind(element)].map(luminance);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) low.push([element.className || element.tagName, element.textContent, ratio]);
}
return low;
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as started:
        yield started


class Browser:
    """The browser, as the tests use it."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self._pictures = Path(os.environ.get("GRADGUARD_PICTURES") or folder)

    def open(
        self, page: Path, *, width: int = DESK, scheme: str = "light", media: str = "", at: str = ""
    ) -> None:
        self._tell(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self._tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=1000,
            deviceScaleFactor=1,
            mobile=width == PHONE,
        )
        self.driver.get("about:blank")
        self.driver.get(page.as_uri() + at)

    def _tell(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def choose(self, name: str, value: str) -> None:
        """Choose `value` in the filter of that name."""
        from selenium.webdriver.support.ui import Select

        Select(self.find(f"select[name={name}]")).select_by_value(value)

    def shown(self) -> list[str]:
        """The findings that the filters leave, by their places, once the page has caught up."""
        self.driver.execute_async_script("setTimeout(arguments[0])")  # after the page's own timers
        return self.run(
            "return [...document.querySelectorAll('article')].filter((one) => !one.hidden)"
            ".map((one) => one.querySelector('.gg-at-place').textContent)"
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        actions = ActionChains(self.driver)
        for key in keys:
            actions.send_keys(getattr(Keys, key))
        actions.perform()

    def outline(self) -> list[tuple[str, str]]:
        """What a screen reader is told: roles and names."""
        self._tell("Accessibility.enable")
        nodes = self._tell("Accessibility.getFullAXTree")["nodes"]
        return [
            (node.get("role", {}).get("value", ""), node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored")
        ]

    def picture(self, name: str) -> None:
        """Take a picture of the whole page."""
        height = min(self.run("return document.documentElement.scrollHeight"), 6000)
        width = self.run("return innerWidth")
        self._tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width == PHONE,
        )
        picture = self.driver.get_screenshot_as_png()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 5_000
        (self._pictures / f"{name}.png").write_bytes(picture)


@pytest.fixture
def browser(driver: Any, tmp_path: Path) -> Iterator[Browser]:
    yield Browser(driver, tmp_path)
    # No test may have made an error: of the script, of the policy, or of what the page asks for.
    assert driver.get_log("browser") == []


WATCHED = Finding(
    "GG104",
    "missing-gradient",
    Severity.ERROR,
    "runtime",
    "no gradient for `encoder.0.weight`: `.detach()` at b.py:3 cuts the graph.",
    Location("b.py", 3, 5, 3, 10, "forward"),
    fix="Leave out `.detach()`.",
    test="test_b.py::test_learns",
    details={
        "watched": {"encoder.0.weight": "missing", "encoder.0.bias": "allowed", "w": "arrived"},
        "objects": ["encoder.0.weight"],
        "backend": None,
    },
)
CROSSED = Finding(
    "GG107",
    "parameters-to-worker",
    Severity.INFO,
    "runtime",
    "2 parameters are pickled.",
    Location("c.py", 5),
    test="test_c.py::test_reads",
    details={"backend": "loky"},
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a loss, a watch and what is worth knowing."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("a.py", "b.py", "c.py"):
        (folder / name).write_text(PROGRAM)
    sent, lost = loss(test="test_a.py::test_step")
    findings = [sent, repaired(lost), WATCHED, CROSSED]
    calls = [Tally(Location("a.py", 6, function="step"), "loky", 1, 2, 1840, 0.42)]
    write_page(folder / "page.html", findings, calls, base=str(folder))
    return folder / "page.html"


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a thousand losses."""
    folder = tmp_path_factory.mktemp("thousand")
    findings: list[Finding] = []
    for number in range(1000):
        name = f"module_{number:03}.py"
        (folder / name).write_text(PROGRAM)
        findings += loss(name, f"x{number}", test=f"test_{number % 10}.py::test_{number}")
    write_page(folder / "page.html", findings, base=str(folder))
    return folder / "page.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_it_can_be_read(browser: Browser, report: Path, width: int, scheme: str) -> None:
    browser.open(report, width=width, scheme=scheme)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.run(CONTRAST) == []
    wide = browser.run("return document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    dark = browser.run("return getComputedStyle(document.body).backgroundColor") != (
        "rgb(255, 255, 255)"
    )
    assert dark == (scheme == "dark")
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    browser.picture(f"page-{width}-{scheme}")


def test_paper_is_white_and_cuts_no_line(browser: Browser, tmp_path: Path) -> None:
    sent, lost = loss()
    (tmp_path / "a.py").write_text(PROGRAM.replace("\tloss.", f"\t{'long_' * 40}loss."))
    write_page(tmp_path / "page.html", [sent, repaired(lost)], base=str(tmp_path))
    browser.open(tmp_path / "page.html", scheme="dark", media="print")
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.run(CONTRAST) == []
    paper = "return getComputedStyle(document.body).backgroundColor"
    assert browser.run(paper) == "rgb(255, 255, 255)"
    wide = "return [...document.querySelectorAll('pre')].map((a) => a.scrollWidth - a.clientWidth)"
    assert set(browser.run(wide)) == {0}


def test_the_lanes_stand_side_by_side(browser: Browser, report: Path) -> None:
    where = """
    return [...document.querySelectorAll(".gg-lanes .gg-event, .gg-lanes .gg-crossing")].map(
      (one) => { const box = one.getBoundingClientRect(); return [box.left, box.right, box.top]; });
    """
    browser.open(report)
    call, sent, task, returned, backward, lost = browser.run(where)
    assert call[0] == backward[0] == lost[0]
    assert call[1] < task[0]
    assert sent[0] <= call[0] < task[1] <= sent[1]
    tops = [one[2] for one in (call, sent, task, returned, backward, lost)]
    assert tops == sorted(set(tops))
    browser.open(report, width=PHONE)
    call, sent, task, returned, backward, lost = browser.run(where)
    assert call[0] < task[0] < call[1] < task[1]


def test_filters_choose_by_code_test_file_severity_and_text(browser: Browser, report: Path) -> None:
    browser.open(report)
    everything = ["a.py:8:2 in step", "b.py:3:5 in forward"]
    assert browser.shown() == everything
    assert browser.find("output").text == "2 of 3 shown"
    browser.choose("code", "GG101")  # what explains a loss counts as it does
    assert browser.shown() == everything[:1]
    browser.choose("file", "b.py")
    assert browser.shown() == []
    assert browser.find("#none").is_displayed()
    browser.choose("code", "")
    assert browser.shown() == everything[1:]
    assert browser.run("return location.hash") == "#file=b.py"
    browser.find("button[type=reset]").click()
    assert len(browser.shown()) == 3  # info, too
    browser.find("input[name=error]").click()
    assert browser.shown() == [everything[0], "c.py:5:1"]  # a warning explains the first
    browser.find("input[name=warning]").click()
    assert browser.shown() == ["c.py:5:1"]
    browser.find("button[type=reset]").click()
    browser.choose("test", "test_c.py::test_reads")
    assert browser.shown() == ["c.py:5:1"]
    browser.find("input[name=info]").click()
    assert browser.shown() == []
    browser.choose("test", "")
    browser.find("input[type=search]").send_keys("Detach B.PY")
    assert browser.shown() == everything[1:]
    browser.open(report, at="#code=GG107&info=1")  # as somebody was sent it
    assert browser.shown() == ["c.py:5:1"]
    browser.open(report, at="#f3")
    assert browser.find("#f3 .gg-message").is_displayed()


def test_a_test_and_the_next_finding_are_a_click_away(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.find("#f1 .tests a").click()
    assert browser.shown() == ["a.py:8:2 in step"]
    browser.find("button[type=reset]").click()
    browser.find("#f1 .next a").click()
    browser.shown()
    assert browser.find("#f2 .gg-message").is_displayed()


def test_a_repair_can_be_copied(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.run(
        "document.addEventListener('copy', () => { window.told = document.activeElement.value; })"
    )
    browser.find("#f1 .gg-copy").click()
    assert browser.find("#f1 .gg-copy").text == "Copied"
    assert browser.run("return window.told") == "    total.backward()\n"
    assert browser.run("return document.querySelectorAll('textarea').length") == 0


def test_one_finding_needs_no_filters(browser: Browser, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", loss())
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.getElementById('filters')") is None
    assert browser.find("#f1 .gg-message").is_displayed()


def test_the_keyboard_is_enough(browser: Browser, report: Path) -> None:
    browser.open(report)
    focused = "return document.activeElement"
    browser.press("TAB")
    assert browser.run(focused).text == "Skip to the findings"
    browser.press("ENTER", "TAB")
    first = browser.run(focused)
    assert first.tag_name == "summary"
    assert browser.find("#f1 .gg-message").is_displayed()
    browser.press("ENTER")
    assert not browser.find("#f1 .gg-message").is_displayed()
    browser.press("TAB", "ENTER")
    assert browser.find("#f2 .gg-message").is_displayed()
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.run(outline) == "solid"


def test_a_screen_reader_is_told_what_there_is(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    told = browser.outline()
    roles = [role for role, _ in told]
    assert {"banner", "main", "search", "contentinfo", "table", "status"} <= set(roles)
    assert ("heading", "gradguard") in told
    title = pitfalls.get("GG103").title
    assert ("heading", f"x gets no gradient: {title[0].lower()}{title[1:]}") in told
    assert ("button", "Copy") in told
    assert ("region", "Where gradients arrive") in told
    named = ("combobox", "searchbox", "checkbox", "button", "link", "region", "search")
    assert [role for role, name in told if role in named and not name] == []
    assert ("columnheader", "Tasks") in told
    for lane in ("your program", "the loky workers"):
        assert ("StaticText", f"In {lane}:") in told
    for way in ("Sent to", "Returned from"):
        assert ("StaticText", f"{way} the workers:") in told


def test_a_thousand_findings_are_laid_out_as_they_are_opened(
    browser: Browser, thousand: Path
) -> None:
    browser.open(thousand)
    assert browser.find("output").text == "1000 of 1000 shown"
    laid_out = """
    const lanes = [...document.querySelectorAll(".gg-lanes")];
    return lanes.filter((one) => one.checkVisibility()).length;
    """
    assert browser.run(laid_out) == 1
    browser.picture("thousand-light")
    browser.find("#f777 summary").click()
    assert browser.run(laid_out) == 2
    browser.find("input[type=search]").send_keys("x99")
    assert [place.split(":")[0] for place in browser.shown()] == [
        f"module_{number:03}.py" for number in (99, *range(990, 1000))
    ]


def test_without_its_script_it_is_all_there(browser: Browser, report: Path) -> None:
    browser._tell("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report)
        assert not browser.find("#filters").is_displayed()
        browser.find("#f3 summary").click()
        assert browser.find("#f3 .gg-message").is_displayed()
    finally:
        browser._tell("Emulation.setScriptExecutionDisabled", value=False)


HOST = """
html { font-size: 10px; } body { background: #222; color: #ddd; font: italic 13px/2 serif; }
* { box-sizing: border-box !important; } #cell * { letter-spacing: 2px; }
#cell .output :not(pre) > code, code, pre { color: #d7ba7d; background: #eee; padding: 4px; }
pre, code { font: 20px serif; white-space: pre-wrap; word-break: break-all; border: 1px solid; }
a, a:link { color: #f90; font-weight: 700; text-decoration: none; } button { height: 40px; }
h1, h2, h3, strong { color: #f55; text-transform: uppercase; border-bottom: 1px solid; }
p { margin: 24px 0; text-align: justify; text-indent: 2em; } span { color: #0f0; }
.output ul:not(.inline), ol { margin: 24px; padding: 2em; list-style: square; } li { margin: 8px; }
details { margin: 10px; border: 1px solid; padding: 10px; } summary { list-style: none; }
figure { margin: 0 40px; } figcaption { text-align: center; } mark { background: yellow; }
div::before, span::after, summary::after { content: "+"; color: red; position: absolute; }
table, td, th { border: 1px solid; padding: 12px; text-align: right; font-size: 9px; }
"""
STYLES = """
for (const one of document.querySelectorAll(".gradguard details")) one.open = true;
const styles = {};
for (const element of document.querySelectorAll(".gradguard, .gradguard *")) {
  const place = `${element.parentElement.className} ${element.tagName} ${element.className}`;
  if (place + " " in styles) continue;
  for (const part of ["", "::before", "::after", "::marker"]) {
    const style = getComputedStyle(element, part || null);
    if (part && part !== "::marker" && style.content === "none") continue;
    const lines = [...style].map((key) => `${key}: ${style.getPropertyValue(key)}`);
    styles[`${place} ${part}`] = lines.join("; ");
  }
}
return styles;
"""
HIDDEN = """
const card = document.querySelector(".gradguard");
return card.scrollHeight - card.clientHeight;
"""
WHY = answer("detached", "`loss` is cut.", [("a.py:3", "`.detach()`")], "Leave out `.detach()`.")


@pytest.mark.parametrize(
    ("shown", "host", "dark"),
    [
        ("findings", "<html><body>", False),
        ("findings", "<html><body data-jp-theme-light='false'>", True),
        ("findings", "<html><body class='vscode-dark'>", True),
        ("findings", "<html theme='dark'><body>", True),
        ("answer", "<html><body class='vscode-high-contrast'>", True),
    ],
)
def test_a_card_looks_alike_in_every_notebook(
    browser: Browser, tmp_path: Path, shown: str, host: str, dark: bool
) -> None:
    card = WHY if shown == "answer" else fragment([*loss(), WATCHED, CROSSED])
    cell = f"<div id=cell style='width: 900px'><div class=output>{card}</div></div>"
    looks = []
    for sheet in ("", HOST):
        head = f"<!doctype html><meta charset=utf-8><style>{sheet}</style>"
        (tmp_path / "notebook.html").write_text(head + host + cell, encoding="utf-8")
        browser.open(tmp_path / "notebook.html")
        assert browser.find(".gradguard").rect["height"] <= 300
        assert browser.run(HIDDEN) == 0
        looks.append(browser.run(STYLES))
        assert browser.run(CONTRAST.replace("body *", ".gradguard *")) == []
    plain, hosted = looks
    assert hosted.keys() == plain.keys()
    for place, style in plain.items():
        assert set(hosted[place].split("; ")) - set(style.split("; ")) == set(), place
    assert (
        "background-color: rgb(20, 24, 29)" in plain["output DIV gradguard gg-embedded "]
    ) == dark
    browser.picture(f"card-{shown}-{'dark' if dark else 'light'}")
