"""The ways to switch the guard on that are not a call: pytest's plugin, and ``gradguard run``.

Each is given whether it is to be on, and returns what its user is told by exit status.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS: dict[str, Callable[[bool], Any]] = {}


def program(function: Callable[[bool], Any]) -> Callable[[bool], Any]:
    """One of the programs."""
    PROGRAMS[function.__name__] = function
    return function


TESTS = """
import pytest
import torch
from joblib import Parallel, delayed

pytestmark = pytest.mark.filterwarnings("default")


def double(x):
    return x * 2


def lose(backend):
    x = torch.ones(2, requires_grad=True)
    out = Parallel(2, backend=backend)(delayed(double)(x * 1) for _ in range(2))
    (out[0] + out[1]).sum().backward()
    return x.grad


def test_loses():
    assert lose("multiprocessing") is None


def test_keeps():
    assert lose("threading").tolist() == [4.0, 4.0]


def test_loses_and_fails():
    assert lose("multiprocessing") is not None


@pytest.mark.gradguard(allow="GG101")
def test_allows():
    lose("multiprocessing")


def test_skips():
    pytest.skip("not here")


@pytest.fixture
def broken():
    raise KeyError("broken")


def test_error(broken):
    pass


@pytest.mark.xfail
def test_expected_to_fail():
    lose("multiprocessing")
    raise KeyError


@pytest.fixture
def failing_later():
    yield
    raise KeyError("later")


def test_teardown(failing_later):
    pass


@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number):
    assert number
"""

BY_FIXTURE = """
import torch


def test_findings(gradguard):
    with gradguard.allow("GG101"):
        assert isinstance(gradguard.findings, list)


def test_watch(watch_gradients):
    model = torch.nn.Linear(2, 1)
    watch_gradients(model)
    model(torch.ones(1, 2)).sum().backward()
"""

SCRIPT = """
import sys
import torch
from joblib import Parallel, delayed


def double(x):
    return x * 2


if __name__ == "__main__":
    x = torch.ones(2, requires_grad=True)
    out = Parallel(2, backend="multiprocessing")(delayed(double)(x * 1) for _ in range(2))
    (out[0] + out[1]).sum().backward()
    print("computed", out[0].tolist(), x.grad, sys.argv[1:])
    sys.exit(int(sys.argv[1]))
"""


class Outcomes:
    """A plugin that takes what pytest says of each test."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """What came of one phase."""
        crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
        text = "" if crash is None else str(crash.message).splitlines()[0]
        self.told.append(f"{report.nodeid} {report.when} {report.outcome} {text}")


def _pytest(source: str, *options: str) -> Any:
    import pytest

    outcomes = Outcomes()
    with _folder("test_it.py", source):
        off = ("-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:anyio")
        status = pytest.main(["-q", "--rootdir=.", *off, *options, "test_it.py"], [outcomes])
    return [int(status), *outcomes.told]


@contextlib.contextmanager
def _folder(name: str, text: str) -> Any:
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(text)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


@program
def plugin(guarded: bool) -> Any:
    on = ("--gradguard", "--gradguard-fail-on=never")
    return _pytest(TESTS, *(on if guarded else ("-p", "no:gradguard")))


@program
def plugin_fixtures(guarded: bool) -> Any:
    """The fixtures are there in any case: without the guard, it is the plugin that works."""
    return _pytest(BY_FIXTURE)


@program
def command(guarded: bool) -> Any:
    """A program as it is, and under ``gradguard run``."""
    import atexit
    import io

    told: list[Any] = []
    for status in (0, 3):
        printed = io.StringIO()
        with _folder("it.py", SCRIPT), contextlib.redirect_stdout(printed):
            arguments = ["it.py", str(status), "--option"]
            try:
                if guarded:
                    from pytest_gradguard.cli import main

                    told.append(main(["run", "--report", "r.json", *arguments]))
                else:
                    sys.argv[:] = arguments
                    code = compile(SCRIPT, "it.py", "exec")
                    main_module = type(sys)("__main__")
                    sys.modules["__main__"] = main_module
                    exec(code, main_module.__dict__)
            except SystemExit as end:
                told.append(end.code)
            atexit._run_exitfuncs()
        told.append(printed.getvalue())
        if guarded:
            from pytest_gradguard import uninstall

            uninstall()
    return told
