"""One run of one program, in a process forked from this one; and how it differs from another."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import planting
import programs
from planting import PACKAGE, PLANTED, Fault

LIMIT = 120
"""Seconds after which a program hangs."""
FAILED = "gradguard itself failed"
CLOSED = "is not known to gradguard"
UNDOING = {
    f"{PACKAGE}.runtime.kernel.{one}"
    for one in (
        *("patching:Patch.undo", "patching:Patches.undo", "patching:undo", "watching:stop"),
        *("state:drop", "subscribers:Subscribers.clear", "subscribers:Subscribers._keep"),
        "subscribers:Subscribers._set",
    )
}
"""What undoes all that is left when others that undo have failed: if these fail, names are left."""


class Outcome:
    """How one run of a program ended."""

    def __init__(self, folder: Path, status: int, hung: bool) -> None:
        told = folder / "result.json"
        self.status = status
        self.hung = hung
        self.result = json.loads(told.read_text()) if told.exists() else {}
        notes = (folder / "notes").read_text() if (folder / "notes").exists() else ""
        self.fired = "fired " in notes
        self.warnings = [line for line in notes.splitlines() if line.startswith("warning ")]
        self.written = (folder / "written").read_text(errors="replace")

    def differences(
        self, bare: Outcome, fault: Fault | None = None, strict: bool = False
    ) -> Iterator[str]:
        """In what it differs from the unguarded run, with that fault planted in it.

        Args:
            bare: the unguarded run.
            fault: what is planted.
            strict: no name may be left, not even where what fails is the last that undoes.
        """
        if self.hung:
            yield f"hung\n{self.written[-3000:]}"
            return
        if self.status != bare.status:
            yield f"exit status {self.status}, not {bare.status}\n{self.written[-3000:]}"
            return
        if self.result.get("outcome") != bare.result.get("outcome"):
            yield "\n  not ".join(_first_difference(*map(_parts, (self, bare))))
        if self.result.get("left") and (strict or fault is None or fault.function not in UNDOING):
            left = self.result["left"]
            yield f"left in place: {len(left)} names: {', '.join(left[:5])}"
        printed = self.written.splitlines()
        said = [line for line in self.warnings if FAILED in line or PLANTED in line]
        said += [line for line in printed if FAILED in line]
        closed = [line for line in said if CLOSED in line]  # once for each library
        others = [line.split()[1] for line in self.warnings if line in said and line not in closed]
        if any(len({*once}) != len(once) for once in (closed, others)):
            yield f"several warnings: {said}"
        told = "codes" in self.result  # else it has filters for warnings of its own
        if self.fired and not said and told and fault and fault.kind == "raise":
            yield f"no warning\n{self.written[-1500:]}"
        if any(PLANTED in line and FAILED not in line for line in printed):
            yield f"on standard error:\n{self.written[-1500:]}"


def _parts(outcome: Outcome) -> list[str]:
    kind, *rest = outcome.result.get("outcome") or ["nothing"]
    values = rest[0] if rest and isinstance(rest[0], list) else rest
    return [kind, *map(str, values)]


def _first_difference(mine: list[str], theirs: list[str]) -> tuple[str, str]:
    pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing")
    return next((one, other) for one, other in pairs if one != other)


class Trial:
    """One run of a program in a forked process, which begins at once.

    Args:
        program: its name.
        guarded: whether it runs under the guard.
        fault: what is planted.
        live: what is loaded of the guard in this process, where anything is.
        record: the file that the functions of the guard that it calls are written to.
    """

    def __init__(
        self,
        program: str,
        *,
        guarded: bool,
        fault: Fault | None = None,
        live: planting.Live | None = None,
        record: str = "",
    ) -> None:
        self.program = program
        self.fault = fault
        self._folder = Path(tempfile.mkdtemp(prefix="gradguard-faults-"))
        self._end = time.monotonic() + LIMIT
        self._outcome: Outcome | None = None
        sys.stdout.flush()
        self._child = os.fork()
        if not self._child:
            os.setsid()
            status = 99
            try:
                self._environment(record)
                planting.by_environment(live)
                self._run(guarded)
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)

    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        if self._outcome is None:
            done, status = os.waitpid(self._child, os.WNOHANG)
            hung = not done and time.monotonic() > self._end
            if hung:
                os.kill(self._child, signal.SIGABRT)  # faulthandler tells where
                time.sleep(0.3)
                self._kill()
                _, status = os.waitpid(self._child, 0)
            if done or hung:
                self._kill()
                self._outcome = Outcome(self._folder, os.waitstatus_to_exitcode(status), hung)
                shutil.rmtree(self._folder, ignore_errors=True)
        return self._outcome

    def wait(self) -> Outcome:
        """How it ends."""
        while (outcome := self.outcome()) is None:
            time.sleep(0.005)
        return outcome

    def _kill(self) -> None:
        """End it with all that it has started."""
        try:
            os.killpg(self._child, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _environment(self, record: str) -> None:
        """Have what is written gather in the folder, and the same planted in new processes."""
        import faulthandler

        written = os.open(self._folder / "written", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(written, 1)
        os.dup2(written, 2)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        faulthandler.enable()
        here = Path(__file__).parent
        path = [str(here / "inside"), str(here), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        os.environ["PLANTED_NOTES"] = str(self._folder / "notes")
        if self.fault:
            os.environ["PLANTED"] = str(self.fault)
        if record:
            os.environ["PLANTED_RECORD"] = record

    def _run(self, guarded: bool) -> None:
        result: dict[str, Any]
        if self.program in programs.GUARDED_BY_THEMSELVES:
            before = patched()
            outcome = _outcome(lambda: programs.GUARDED_BY_THEMSELVES[self.program](guarded))
            result = {"outcome": outcome, "left": sorted(patched() - before)}
        elif not guarded:
            result = {"outcome": _outcome(programs.PROGRAMS[self.program])}
        else:
            from pytest_gradguard import install, uninstall

            before = patched()
            report = install()
            outcome = _outcome(programs.PROGRAMS[self.program])
            codes = sorted(finding.code for finding in report.findings)
            uninstall()
            left = sorted(patched() - before)
            result = {"outcome": outcome, "codes": codes, "left": left}
        (self._folder / "result.json").write_text(json.dumps(result))


def _outcome(program: Any) -> Any:
    try:
        return ["returned", json.loads(json.dumps(program()))]
    except BaseException as error:
        return ["raised", type(error).__name__, str(error)]


def patched() -> set[str]:
    """The names in modules and classes of others under which something of the guard's stands."""
    part = f"{os.sep}{PACKAGE}{os.sep}"
    found = set()
    for name, module in list(sys.modules.items()):
        if name.startswith(
            (PACKAGE, "gradguard_lint", "programs", "planting", "sweep", "trial", "__main__")
        ):
            continue
        names = getattr(module, "__dict__", {})
        spaces = [(name, names)]
        spaces += [
            (f"{name}.{kind.__qualname__}", kind.__dict__)
            for kind in list(names.values())
            if issubclass(type(kind), type) and kind.__module__ == name
        ]
        for where, space in spaces:
            for key, value in list(space.items()):
                if type(value) in (staticmethod, classmethod):
                    value = value.__func__
                if type(value) is FunctionType and part in value.__code__.co_filename:
                    found.add(f"{where}.{key}")
    found |= {f"sys.meta_path {type(one)}" for one in sys.meta_path if PACKAGE in str(type(one))}
    return found
