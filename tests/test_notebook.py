"""The magics in a real kernel: what a cell shows, and that it otherwise runs as without them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SETUP = """\
import asyncio, torch, pytest_gradguard
from joblib import Parallel, delayed

def add(tensor, number):
    return tensor + number

def results():
    x = torch.ones(3, requires_grad=True)
    return x, Parallel(2, backend="multiprocessing")(delayed(add)(x.clone(), k) for k in range(2))

%load_ext pytest_gradguard
"""

LOSING = """\
%%gradguard
x, out = results()
sum(out).sum().backward()
"value"
"""


class Shown(NamedTuple):
    """What one cell has shown: its streams, what it displays, its value, its error."""

    text: str
    displayed: list[dict[str, str]]
    value: str | None
    error: str | None
    traceback: str
    cell: int


class Kernel:
    """A kernel, cell by cell."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager = manager
        self._client = client

    def run(self, cell: str, *, interrupt_at: str | None = None) -> Shown:
        text: list[str] = []
        displayed: list[dict[str, str]] = []
        value: list[str] = []
        traceback: list[str] = []

        def hear(message: Any) -> None:
            content = message["content"]
            kind = message["msg_type"]
            if kind == "stream":
                text.append(content["text"])
                if interrupt_at is not None and interrupt_at in content["text"]:
                    threading.Timer(0.2, self.manager.interrupt_kernel).start()
            elif kind == "display_data":
                displayed.append(content["data"])
            elif kind == "execute_result":
                value.append(content["data"]["text/plain"])
            elif kind == "error":
                traceback.extend(content["traceback"])

        reply = self._client.execute_interactive(cell, timeout=120, output_hook=hear)["content"]
        error = reply["ename"] if reply["status"] == "error" else None
        plain = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(traceback))
        cell = reply["execution_count"]
        return Shown("".join(text), displayed, value[0] if value else None, error, plain, cell)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager_module = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    pytest.importorskip("torch")
    manager, client = manager_module.start_new_kernel(startup_timeout=120)
    kernel = Kernel(manager, client)
    try:
        assert kernel.run(SETUP).error is None
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def places(shown: Shown) -> list[tuple[str, str]]:
    """The codes and places of what the cell displays."""
    (displayed,) = shown.displayed
    return re.findall(r"\w+\[(GG\d+)\] .*\n *--> (.*?:\d+):", displayed["text/plain"])


def test_a_guarded_cell_shows_what_it_found_below_it(kernel: Kernel) -> None:
    shown = kernel.run(LOSING)
    assert shown.value == "'value'"
    assert shown.text == ""
    assert places(shown) == [("GG103", f"cell {shown.cell}:3")]
    (displayed,) = shown.displayed
    assert "sum(out).sum().backward()" in displayed["text/plain"]
    assert '<div class="gradguard gg-embedded">' in displayed["text/html"]
    assert '<figure class="gg-lanes">' in displayed["text/html"]
    assert f"cell {shown.cell}:3" in displayed["text/html"]
    clean = kernel.run("%%gradguard\n1 + 1")
    assert (clean.value, clean.error) == ("2", None)
    assert clean.displayed[0]["text/plain"] == "gradguard: no findings"
    unguarded = kernel.run(LOSING.partition("\n")[2])
    assert (unguarded.text, unguarded.displayed) == ("", [])


def test_its_own_lines_are_shown_as_typed(kernel: Kernel) -> None:
    (page,) = kernel.run("%%gradguard --simulate-gpu 2\n" + LOSING.partition("\n")[2]).displayed
    assert "# %%gradguard --simulate-gpu 2" in page["text/html"]
    assert "run_cell_magic" not in page["text/html"]


def test_a_cell_has_its_number_in_the_file_where_that_is_known(
    kernel: Kernel, tmp_path: Path
) -> None:
    sources = (("markdown", "# Title"), ("code", SETUP), ("code", ""), ("code", LOSING))
    cells = [{"cell_type": kind, "source": text.splitlines(True)} for kind, text in sources]
    book = tmp_path / "book.ipynb"
    book.write_text(json.dumps({"cells": cells}))
    kernel.run(f"import os; os.environ['JPY_SESSION_NAME'] = {str(book)!r}")
    try:
        shown = kernel.run(LOSING)
        assert f"--> cell 2:3:1 (In [{shown.cell}])\n" in shown.displayed[0]["text/plain"]
        unknown = kernel.run(LOSING + "# not in the file")
        assert places(unknown) == [("GG103", f"cell {unknown.cell}:3")]
        cells.append(cells[-1])  # which of both it is, is not known
        book.write_text(json.dumps({"cells": cells}))
        twice = kernel.run(LOSING)
        assert places(twice) == [("GG103", f"cell {twice.cell}:3")]
    finally:
        kernel.run("del os.environ['JPY_SESSION_NAME']")


def test_a_json_report_names_the_cell(kernel: Kernel) -> None:
    ran = kernel.run(
        "with pytest_gradguard.guard('record') as report:\n"
        "    x, out = results()\n    sum(out).sum().backward()"
    )
    where = kernel.run("report.findings[-1].to_dict()['location']").value
    assert where is not None
    assert f"'path': 'cell {ran.cell}',\n 'cell': {ran.cell},\n 'line': 3,\n" in where


def test_errors_are_those_of_the_cell(kernel: Kernel) -> None:
    shown = kernel.run("%%gradguard\nresults()\n1 / 0")
    assert shown.error == "ZeroDivisionError"
    assert "1 # %%gradguard\n      2 results()\n----> 3 1 / 0" in shown.traceback
    assert "pytest_gradguard" not in shown.traceback
    assert {code for code, _ in places(shown)} == {"GG101", "GG102"}
    wrong = kernel.run("%%gradguard\nif True\n    pass")
    assert wrong.error == "SyntaxError"
    assert kernel.run("1 + 1").displayed == []


def test_await_in_a_guarded_cell(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%gradguard\nawait asyncio.sleep(0)\nx, out = results()\nawait asyncio.sleep(0)\n"
        "sum(out).sum().backward()"
    )
    assert shown.error is None
    assert [(code, place.partition(":")[2]) for code, place in places(shown)] == [("GG103", "5")]


def test_an_interrupted_cell_ends_its_guard(kernel: Kernel) -> None:
    shown = kernel.run(
        "%%gradguard\nimport time\nresults()\nprint('ready', flush=True)\ntime.sleep(100)",
        interrupt_at="ready",
    )
    assert shown.error == "KeyboardInterrupt"
    assert {code for code, _ in places(shown)} == {"GG101", "GG102"}
    assert kernel.run(LOSING.partition("\n")[2]).displayed == []


def test_other_magics_and_future_imports_below_it(kernel: Kernel) -> None:
    shown = kernel.run("%%gradguard\n%%time\nx, out = results()\nsum(out).sum().backward()")
    assert "Wall time" in shown.text
    assert [code for code, _ in places(shown)] == ["GG103"]
    shown = kernel.run("%%time\n%%gradguard\nx, out = results()\nsum(out).sum().backward()")
    assert "Wall time" in shown.text
    assert [code for code, _ in places(shown)] == ["GG103"]
    shown = kernel.run(
        "%%gradguard\nfrom __future__ import annotations  # first\nx, out = results()\n"
        "sum(out).sum().backward()\n1 / 0"
    )
    assert shown.error == "ZeroDivisionError"
    assert "import annotations  # first\n" in shown.traceback
    assert "----> 5 1 / 0" in shown.traceback
    assert places(shown) == [("GG103", f"cell {shown.cell}:4")]
    shown = kernel.run(
        "get_ipython().run_cell_magic('gradguard', '', 'y, out = results()\\n1 / 0')"
    )
    assert shown.error == "ZeroDivisionError"
    assert {code for code, _ in places(shown)} == {"GG101", "GG102"}


def test_on_and_off(kernel: Kernel) -> None:
    on = kernel.run("%gradguard on")
    assert on.displayed == []
    assert on.text == "gradguard: on for every cell from here on; %gradguard off stops it\n"
    assert kernel.run("x, out = results()").displayed
    shown = kernel.run("sum(out).sum().backward()")  # the results of another cell
    assert [code for code, _ in places(shown)] == ["GG103"]
    assert kernel.run("1 + 1").displayed == []
    off = kernel.run("%gradguard off")
    assert (off.text, off.displayed) == ("gradguard: off\n", [])
    assert kernel.run(LOSING.partition("\n")[2]).displayed == []


def test_simulated_gpus_for_one_cell(kernel: Kernel) -> None:
    shown = kernel.run("%%gradguard --simulate-gpu 2\ntorch.cuda.device_count()")
    assert (shown.value, shown.error) == ("2", None)
    assert kernel.run("torch.cuda.device_count()").value == "0"


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%gradguard perhaps", "%gradguard takes on or off, not 'perhaps'"),
        ("%gradguard", "%gradguard takes on or off, not ''"),
        ("%%gradguard --simulate-gpu no\nran = True", "must be 1 or more, not 'no'"),
        ("%%gradguard --simulate-gpu=0\nran = True", "must be 1 or more, not '0'"),
        ("%%gradguard --deep\nran = True", "unrecognized arguments: --deep"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(kernel: Kernel, cell: str, says: str) -> None:
    shown = kernel.run(cell)
    assert shown.error == "UsageError"
    said = (shown.text + shown.traceback).strip()
    assert says in said
    assert "\n" not in said
    assert kernel.run("'ran' in globals()").value == "False"


def test_findings_reports_and_answers_show_as_html(kernel: Kernel) -> None:
    kernel.run(
        "with pytest_gradguard.guard('record') as report:\n"
        "    x, out = results()\n    sum(out).sum().backward()"
    )
    draw = "get_ipython().display_formatter.format({})[0]['text/html']"
    for thing in ("report", "report.findings[-1]"):
        shown = kernel.run(draw.format(thing)).value
        assert shown is not None
        assert "gg-lanes" in shown, thing
    shown = kernel.run(draw.format("pytest_gradguard.why_no_grad(x.detach().to(int))")).value
    assert shown is not None
    assert "How to fix it." in shown


def test_it_is_unloaded(kernel: Kernel) -> None:
    kernel.run("%gradguard on")
    assert kernel.run("%unload_ext pytest_gradguard").error is None
    assert kernel.run("x, out = results()").displayed == []
    assert (
        kernel.run("from pytest_gradguard.runtime.kernel import collector; collector.stack").value
        == "[]"
    )
    assert kernel.run("%%gradguard\n1").error == "UsageError"
    assert kernel.run("%reload_ext pytest_gradguard").error is None
    assert kernel.run(LOSING).displayed
