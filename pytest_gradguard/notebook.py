"""IPython's extension: ``%%gradguard`` guards one cell, ``%gradguard on`` all that follow.

What a cell found shows below it. The cell itself runs as it would without the guard, for its first
line is all that changes: so its errors, its interrupts and its `await` are its own.
"""

from __future__ import annotations

import argparse
import linecache
import re
import sys
from contextlib import ExitStack
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.display import display

from pytest_gradguard.cli.words import at_least_one
from pytest_gradguard.disabled import VARIABLE, is_disabled
from pytest_gradguard.findings import Finding, Severity
from pytest_gradguard.interactive import execution_of
from pytest_gradguard.runtime import Report, guard, install, uninstall

__all__ = ["load_ipython_extension", "unload_ipython_extension"]

_NAME = "gradguard"
_MAGIC = re.compile(r"\s*%%(?P<name>\S+)(?P<line>[^\n]*)\n?(?P<body>.*)", re.S)
_FUTURE = re.compile(r"(?P<statement>from +__future__ +import +[\w, ]*\w)(?P<end>\s*(?:#.*)?\n?)")
_HEAD = re.compile(r"%%gradguard(?:[ \t]+(?P<arguments>.*?))?\s*")


def load_ipython_extension(shell: Any) -> None:
    """Add the magics; what ``%load_ext pytest_gradguard`` calls."""
    if _NAME not in shell.magics_manager.registry:
        GradGuardMagics(shell).begin()


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again, and end the guard."""
    magics = shell.magics_manager.registry.get(_NAME)
    if magics is not None:
        magics.end()


class _OfCell:
    """What was found while a cell ran, as text and as HTML."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __repr__(self) -> str:
        return str(self._report) if self._report.findings else "gradguard: no findings"

    def _repr_html_(self) -> str:
        return self._report._repr_html_()


class _Arguments(argparse.ArgumentParser):
    """What stands behind ``%%gradguard``; what cannot be used is one line."""

    def __init__(self) -> None:
        super().__init__(prog="%%gradguard", add_help=False, allow_abbrev=False)
        self.add_argument("--simulate-gpu", metavar="N", type=at_least_one)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%gradguard: {message}")


class GradGuardMagics:
    """``%gradguard`` and ``%%gradguard``."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._everywhere = False
        self._open: tuple[ExitStack, Report, bool] | None = None
        self._nested = 0

    def begin(self) -> None:
        """Add the magics, and listen for the cells."""
        shell = self._shell
        shell.magics_manager.registry[_NAME] = self
        shell.register_magic_function(self.switch, "line", _NAME)
        shell.register_magic_function(self.cell, "cell", _NAME)
        shell.input_transformers_cleanup.append(opened)
        shell.events.register("pre_execute", self._before)
        shell.events.register("post_execute", self._after)
        formatter = shell.display_formatter.formatters["text/html"]
        formatter.for_type(Finding, _drawn)

    def end(self) -> None:
        """Undo `begin`."""
        shell = self._shell
        self._leave()
        if self._everywhere:
            self._off()
        shell.events.unregister("pre_execute", self._before)
        shell.events.unregister("post_execute", self._after)
        shell.input_transformers_cleanup.remove(opened)
        shell.display_formatter.formatters["text/html"].pop(Finding, None)
        del shell.magics_manager.registry[_NAME]
        for kind in ("line", "cell"):
            del shell.magics_manager.magics[kind][_NAME]

    # -- the magics ----------------------------------------------------------------------------

    def switch(self, line: str) -> None:
        """``%gradguard on`` guards every cell that follows, ``%gradguard off`` ends it."""
        wanted = line.strip()
        if wanted not in ("on", "off"):
            raise UsageError(f"%gradguard takes on or off, not {wanted!r}")
        if wanted == "off":
            self._off()
            print("gradguard: off")
        elif is_disabled():
            print(f"gradguard: off ({VARIABLE} is set)")
        else:
            install(mode="record")  # what one cell ships is still known in the next
            self._everywhere = True
            print("gradguard: on for every cell from here on; %gradguard off stops it")

    def cell(self, line: str, body: str) -> Any:
        """``%%gradguard [--simulate-gpu N]`` guards one cell, and shows what it found below it.

        With ``--simulate-gpu N``, torch programs that ask for CUDA run on the CPU, with N simulated
        GPUs.
        """
        _show_as_typed(line)
        devices = _Arguments().parse_args(line.split()).simulate_gpu
        if is_disabled():
            print(f"gradguard: off ({VARIABLE} is set)")
        else:
            try:
                self._enter(devices, asked=True)
            except (RuntimeError, ValueError) as error:
                raise UsageError(f"%%gradguard: {error}") from None
        return self._run(body)

    def _run(self, body: str) -> Any:
        """Run what `opened` has not left where it is: nothing at all, mostly."""
        shell = self._shell
        magic = _MAGIC.fullmatch(body)
        if magic is not None:
            return shell.run_cell_magic(magic["name"], magic["line"].strip(), magic["body"])
        if body.strip():
            shell.run_cell("#\n" + body).raise_error()
        return None

    def _off(self) -> None:
        self._everywhere = False
        uninstall()

    # -- the cells -----------------------------------------------------------------------------

    def _enter(self, devices: int | None, *, asked: bool) -> None:
        """Guard the rest of the cell; `asked`: also say that nothing was found."""
        self._leave()  # of a cell whose end IPython has not told
        with ExitStack() as stack:
            report = stack.enter_context(guard(mode="record", simulate_gpu=devices))
            self._open = (stack.pop_all(), report, asked)
            self._nested = 0

    def _leave(self) -> None:
        if self._open is None:
            return
        (stack, report, asked), self._open = self._open, None
        stack.close()
        if asked or any(one.severity > Severity.INFO for one in report.findings):
            display(_OfCell(report))

    def _before(self) -> None:
        if self._open is not None:
            self._nested += 1  # a cell that the guarded one runs
        elif self._everywhere:
            self._enter(None, asked=False)

    def _after(self) -> None:
        if self._nested:
            self._nested -= 1
        else:
            self._leave()


def opened(lines: list[str]) -> list[str]:
    """A cell that begins with ``%%gradguard``, whose first line opens the guard instead.

    The rest stays what it is, in its lines. What another magic runs is given to that.
    """
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        return lines
    rest = lines[1:]
    if next(filter(str.strip, rest), "").startswith("%%"):
        return lines
    call = _call(head["arguments"] or "")
    for number in range(len(rest) - 1, -1, -1):
        future = _FUTURE.fullmatch(rest[number])
        if future is not None:  # Python wants it before anything else
            rest[number] = f"{future['statement']}; {call}{future['end']}"
            return ["#\n", *rest]
    return [call + "\n", *rest]


def _call(arguments: str) -> str:
    """What runs the magic in place of the first line of its cell."""
    return f"get_ipython().run_cell_magic('gradguard', {arguments!r}, '\\n')"


def _show_as_typed(arguments: str) -> None:
    """Let tracebacks and reports show ``%%gradguard`` in the running cell, not the call made of it.

    It is shown as a comment: whoever reads the source of the cell has to find Python.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and execution_of(frame.f_code.co_filename) is None:
        frame = frame.f_back
    path, call = frame.f_code.co_filename, _call(arguments)
    lines = linecache.getlines(path)
    if not any(call in line for line in lines):
        return
    shown = [line.replace(f"; {call}", "") for line in lines]
    shown[0] = f"# %%gradguard {arguments}".rstrip() + "\n"
    linecache.cache[path] = (sum(map(len, shown)), None, shown, path)


def _drawn(finding: Finding) -> str:
    from pytest_gradguard.reports.page import fragment

    return fragment([finding], count=False)
