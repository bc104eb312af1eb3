"""Makes each function of the guard raise while programs run that call it (`make faults`).

Of each program it is first recorded which functions it calls. Then it runs once for each of these,
in a process forked from this one, where torch and the guard are loaded already. It has to end as it
does without the guard, with at most one warning in each process, and no patched name may be left.

Exit status 1: something went otherwise.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import itertools
import json
import os
import random
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
import torch
from planting import PACKAGE

LIMIT = 120
"""Seconds after which a program hangs."""

BY_CALLER = {
    # The program calls these itself, with what may be wrong of its own: they raise.
    f"{PACKAGE}.runtime": ("install", "uninstall", "guard", "allow", "simulated", "Report."),
    f"{PACKAGE}.gradients": ("watch_gradients",),
    f"{PACKAGE}.gradients.watch": (
        *("Watch.__init__", "Watch.start", "Watch.stop", "Watch.close", "Watch.check"),
        *("Watch.__enter__", "Watch.__exit__", "Watch._parts_for", "Watch._asked", "Watch._fail"),
        *("Watch._stepped", "Watch._judge", "Watch._allowed", "patterns", "switch", "step_count"),
    ),
    # They iterate what the user has given, which may raise.
    f"{PACKAGE}.gradients.targets": ("items_of", "_walk", "_kind", "join"),
    f"{PACKAGE}.runtime.announcing": ("announcer", "Warner.__init__"),
    f"{PACKAGE}.runtime.collector": (
        "Collector.__init__",
        "Collector.told",
        "Collector.findings",
        "_after_fork",
    ),
    f"{PACKAGE}.pitfalls": ("",),
    f"{PACKAGE}.findings": ("",),
    # In the place of the program's own iterators.
    f"{PACKAGE}.runtime.integrations.joblib.parallel": ("_announcing",),
    f"{PACKAGE}.runtime.probes.pulling": (
        "_Pulled.__next__",
        "_Pulled.__iter__",
        "_Pulled.__getattr__",
    ),
    # In the place of a process's `run`.
    f"{PACKAGE}.runtime.integrations.loader.iterating": ("WorkerRun.__call__",),
    f"{PACKAGE}.runtime.dispatch.process_gradients": ("Run.__call__", "Run.__reduce__"),
    # What Python and torch call, with nothing of the guard's between; what these call is tried.
    f"{PACKAGE}.runtime.references": ("_forget",),
    f"{PACKAGE}.runtime.watching": ("_Finder.find_spec",),
    f"{PACKAGE}.runtime.frameworks.torch.following": ("_forget",),
    f"{PACKAGE}.runtime.frameworks.torch.steps": ("_Steps._step",),
    f"{PACKAGE}.runtime.frameworks.torch.transforms": ("_Following.__torch_function__",),
    f"{PACKAGE}.gradients.torch_watch": ("Entry.watch.hook",),
    # What Python calls in each forked child, and what is below all else.
    f"{PACKAGE}.runtime.locks": ("",),
    f"{PACKAGE}.runtime.fork_safety.forks": ("_before", "_after_in_parent", "_after_in_child"),
    # What tells of faults. Nothing is below it.
    f"{PACKAGE}.runtime.faults": ("",),
    # What stands between the program and the modules of the guard.
    PACKAGE: ("",),
}


class Place:
    """A function of the guard's: where its code is, and by what name it is planted."""

    def __init__(self, module: str, path: str, function: planting.Function) -> None:
        self.name = f"{module}:{path}"
        self.module = module
        self.path = path
        self._stands_for_theirs = any(
            ast.unparse(decorator).startswith("functools.wraps(")
            for decorator in getattr(function, "decorator_list", ())
        )

    @property
    def raises(self) -> bool:
        """Whether it is for its caller to take what it raises."""
        return self._stands_for_theirs or self.path.startswith(BY_CALLER.get(self.module, ()))


def places() -> dict[str, Place]:
    """All functions of the guard's, by what the record calls them."""
    found: dict[str, Place] = {}
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for file in sorted(root.rglob("*.py")):
        parts = (PACKAGE, *file.relative_to(root).with_suffix("").parts)
        module = ".".join(part for part in parts if part != "__init__")
        if len(parts) > 1 and parts[1] in ("plugin", "cli"):
            continue
        for path, one in planting.functions(ast.parse(file.read_text(encoding="utf-8"))):
            lines = [decorator.lineno for decorator in getattr(one, "decorator_list", ())]
            first = min([one.lineno, *lines])
            found.setdefault(planting.name_of(str(file), first), Place(module, path, one))
    return found


# -- one program --------------------------------------------------------------------------------


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

    def differences(self, bare: Outcome, planted: str = "") -> Iterator[str]:
        """In what it differs from the unguarded run."""
        if self.hung:
            yield f"hung\n{self.written[-3000:]}"
            return
        if self.status != bare.status:
            yield f"exit status {self.status}, not {bare.status}\n{self.written[-3000:]}"
            return
        if self.result.get("outcome") != bare.result.get("outcome"):
            yield "\n  not ".join(_first_difference(*map(_parts, (self, bare))))
        if self.result.get("left") and not _undoes(planted):
            left = self.result["left"]
            yield f"left in place: {len(left)} names: {', '.join(left[:5])}"
        said = [line for line in self.warnings if "gradguard itself failed" in line]
        said += [line for line in self.written.splitlines() if "gradguard itself failed" in line]
        processes = [line.split()[1] for line in said if line.startswith("warning ")]
        if len(set(processes)) != len(processes):
            yield f"several warnings: {said}"
        if self.fired and not said:
            yield f"no warning\n{self.written[-1500:]}"
        if "PlantedFault" in self.written.replace("gradguard itself failed", ""):
            unheard = [
                line
                for line in self.written.splitlines()
                if "PlantedFault" in line and "itself failed" not in line
            ]
            if unheard:
                yield f"on standard error:\n{self.written[-1500:]}"


def _undoes(planted: str) -> bool:
    """Whether a function is there to undo: what it would have undone is left, where it raises."""
    last = planted.rpartition(":")[2].rpartition(".")[2]
    return "undo" in planted or last in ("unsubscribe", "stop", "_end")


def _parts(outcome: Outcome) -> list[str]:
    kind, *rest = outcome.result.get("outcome") or ["nothing"]
    values = rest[0] if rest and isinstance(rest[0], list) else rest
    return [kind, *map(str, values)]


def _first_difference(mine: list[str], theirs: list[str]) -> tuple[str, str]:
    pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing")
    return next((one, other) for one, other in pairs if one != other)


def run(
    program: str,
    *,
    guarded: bool,
    planted: str | None = None,
    record: str = "",
    live: planting.Live | None = None,
) -> Outcome:
    """Run a program in a forked process."""
    folder = Path(tempfile.mkdtemp(prefix="gradguard-faults-"))
    child = os.fork()
    if not child:
        os.setsid()
        status = 99
        try:
            _run_here(program, folder, guarded, planted, record, live)
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    hung, end = False, time.monotonic() + LIMIT
    pause = 0.005
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            hung = True
            os.kill(child, signal.SIGABRT)  # faulthandler tells where
            time.sleep(0.3)
            _end(child)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(pause)
        pause = min(pause * 1.3, 0.1)
    _end(child)
    outcome = Outcome(folder, os.waitstatus_to_exitcode(status), hung)
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _run_here(
    program: str,
    folder: Path,
    guarded: bool,
    planted: str | None,
    record: str,
    live: planting.Live | None,
) -> None:
    import faulthandler

    written = os.open(folder / "written", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    faulthandler.enable()
    here = Path(__file__).parent
    path = [str(here / "inside"), str(here), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    os.environ["PLANTED_NOTES"] = str(folder / "notes")
    if planted:
        os.environ["PLANTED"] = planted
    if record:
        os.environ["PLANTED_RECORD"] = record
    planting.by_environment(live)
    if not guarded:
        result = {"outcome": _outcome(program)}
    else:
        from pytest_gradguard import install, uninstall
        from pytest_gradguard.runtime import Report  # noqa: F401

        before = patched()
        report = install()
        outcome = _outcome(program)
        codes = sorted(finding.code for finding in report.findings)
        uninstall()
        left = sorted(patched() - before)
        result = {"outcome": outcome, "codes": codes, "left": left}
    (folder / "result.json").write_text(json.dumps(result))


def _outcome(program: str) -> Any:
    try:
        return ["returned", json.loads(json.dumps(programs.PROGRAMS[program]()))]
    except BaseException as error:
        return ["raised", type(error).__name__, str(error)]


def patched() -> set[str]:
    """The names in modules and classes of others under which something of the guard's stands."""
    part = f"{os.sep}{PACKAGE}{os.sep}"
    found = set()
    for name, module in list(sys.modules.items()):
        if name.startswith((PACKAGE, "programs", "planting", "sweep", "__main__")):
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


# -- many ---------------------------------------------------------------------------------------


def called(program: str, known: dict[str, Place]) -> list[Place]:
    """The functions of the guard's that a program calls, here and in its workers."""
    with tempfile.NamedTemporaryFile("r") as file:
        outcome = run(program, guarded=True, record=file.name)
        assert outcome.status == 0, (program, outcome.written)
        names = dict.fromkeys(file.read().splitlines())
    return [known[name] for name in names if name in known]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(programs.PROGRAMS))
    parser.add_argument("--function", help="only those with this in their name")
    parser.add_argument("--sample", type=int, help="only so many, drawn at random, of each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--new", action="store_true", help="each function in one program only")
    parser.add_argument("--all", action="store_true", help="also those that nobody can catch")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    chosen = options.programs or list(programs.PROGRAMS)
    unknown = set(chosen) - set(programs.PROGRAMS)
    if unknown:
        parser.error(f"unknown {unknown.pop()!r} (allowed: {', '.join(programs.PROGRAMS)})")
    prepare()
    known = places()
    tried: set[str] = set()
    wrong = count = 0
    unguarded: dict[str, Outcome] = {}
    reached: dict[str, list[Place]] = {}
    for program in chosen:
        unguarded[program] = run(program, guarded=False)
        reached[program] = called(program, known)
    for program in chosen:
        bare = unguarded[program]
        live = load(reached[program])
        good = run(program, guarded=True)
        for difference in good.differences(bare):
            print(f"{program} without a fault: {difference}", flush=True)
            wrong += 1
        those = [place for place in reached[program] if options.all or not place.raises]
        if options.function:
            those = [place for place in those if options.function in place.name]
        if options.new:
            those = [place for place in those if place.name not in tried]
        if options.sample:
            drawn = random.Random(f"{options.seed} {program}")
            those = drawn.sample(those, min(options.sample, len(those)))
        bad = 0
        for place in those:
            tried.add(place.name)
            outcome = run(program, guarded=True, planted=place.name, live=live)
            found = list(outcome.differences(bare, place.name))
            bad += bool(found)
            for difference in found:
                print(f"{program} {place.name}: {difference}", flush=True)
            if options.verbose and not found:
                print(f"{program} {place.name}: right {outcome.fired}", flush=True)
        count += len(those)
        wrong += bad
        print(
            f"{program}: {len(those)} functions, wrong: {bad} ({good.result.get('codes')})",
            flush=True,
        )
    print(f"{count} faults planted, wrong: {wrong}")
    return 1 if wrong else 0


def load(reached: list[Place]) -> planting.Live:
    """Import the modules of the guard's with these functions, and nothing of others."""
    importlib.import_module(f"{PACKAGE}.runtime")
    for module in dict.fromkeys(place.module for place in reached):
        importlib.import_module(module)
    return planting.Live()


def prepare() -> None:
    """Import what the programs need, and nothing of the guard's."""
    torch.set_num_threads(1)
    for name in (
        "joblib",
        "dask",
        "concurrent.futures.process",
        "torch.distributed",
        "torch._dynamo",
    ):
        importlib.import_module(name)
    importlib.import_module("torch.nn.parallel")
    assert not any(name.startswith(PACKAGE) for name in sys.modules)


if __name__ == "__main__":
    sys.exit(main())
