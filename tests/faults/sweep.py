"""Makes each function of the guard fail while programs run that call it (`make faults`).

Of each program it is first recorded which functions it calls, and on which ways: the door, which is
what the program, a library or Python calls of the guard's, and the caller. Then it runs once for
each function that it calls on a way that no program before it did, in a process forked from this
one, where torch and the guard are loaded already. It has to end as it does without the guard, with
at most one warning in each process, and no patched name may be left.

What has been tried is remembered until a source changes: one that was interrupted goes on.

Exit status 1: something went otherwise.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.util
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import planting
import programs
import torch
from planting import KINDS, PACKAGE, Fault
from trial import Outcome, Trial

HERE = Path(__file__).parent
RECORD = HERE.parents[1] / "build" / "faults.jsonl"

BELOW = (
    f"{PACKAGE}.runtime.kernel.faults",
    f"{PACKAGE}.runtime.kernel.lineage",
    f"{PACKAGE}.runtime.kernel.locks",
    *(f"{PACKAGE}.platforms{part}" for part in ("", ".base", ".posix")),
    f"{PACKAGE}.aside",
    PACKAGE,
)
"""The modules on which all stands that takes a fault: what tells of faults, what a fork resets, the
platform, the locks, and what stands between the program and the modules of the guard."""
ITSELF = re.compile(
    rf"{PACKAGE}\.cli(\.program)?:|{PACKAGE}\.cli\.run:(run|build_parser|_execute)$"
)
"""What reads the command line of ``gradguard run``, finds the program and runs it: without it there
is no program."""
Way = tuple[str, ...]
"""A function, its caller, and the door."""


def places() -> tuple[dict[str, str], dict[str, list[str]]]:
    """All functions of the guard's, by what the record calls them: ``module:path``; and the kinds
    of faults of each. An error that its docstring names is an answer, and no fault."""
    found: dict[str, str] = {}
    kinds: dict[str, list[str]] = {}
    root = package()
    for file in sorted(root.rglob("*.py")):
        parts = (PACKAGE, *file.relative_to(root).with_suffix("").parts)
        module = ".".join(part for part in parts if part != "__init__")
        if module in BELOW:
            continue
        for path, one in planting.functions(ast.parse(file.read_text(encoding="utf-8"))):
            if stands_for_theirs(one) or ITSELF.match(f"{module}:{path}"):
                continue
            lines = [decorator.lineno for decorator in getattr(one, "decorator_list", ())]
            first = min([one.lineno, *lines])
            name = found.setdefault(planting.name_of(str(file), first), f"{module}:{path}")
            answers = re.findall(r"[A-Z]\w+", said_of(one).partition("Raises:")[2])
            kinds.setdefault(name, [kind for kind in KINDS if kind not in answers])
    return found, kinds


def stands_for_theirs(function: planting.Function) -> bool:
    """Whether it is called in place of a library's own function, or by what is no Python.

    What is called by unpickling, or as an object is freed, says so in its docstring.
    """
    decorators = map(ast.unparse, getattr(function, "decorator_list", ()))
    name = getattr(function, "name", "")
    said = said_of(function)
    return (
        name in ("__reduce__", "__reduce_ex__", "__torch_function__")
        or "called by unpickling" in said
        or "called by pickling" in said
        or "called by the interpreter" in said
        or any(decorator.startswith("functools.wraps(") for decorator in decorators)
    )


def said_of(function: planting.Function) -> str:
    """Its docstring."""
    return "" if isinstance(function, ast.Lambda) else ast.get_docstring(function) or ""


def package() -> Path:
    """The folder of the guard."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def called(program: str, known: dict[str, str]) -> dict[str, set[Way]]:
    """The functions of the guard's that it calls itself in that program, and on which ways."""
    with tempfile.NamedTemporaryFile("r") as file:
        outcome = Trial(program, guarded=True, record=file.name).wait()
        assert outcome.status == 0, (program, outcome.written)
        ways = [tuple(line.split("\t")) for line in file.read().splitlines()]
    found: dict[str, set[Way]] = {}
    for way in ways:
        if way[0] in known:
            found.setdefault(known[way[0]], set()).add(way)
    return found


class Task(NamedTuple):
    """A fault to be planted in a program."""

    program: str
    fault: Fault


class Record:
    """What has been tried with these sources, on disk.

    Args:
        path: the file; None to remember nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._right: set[str] = set()
        if path is None:
            return
        sources = [*package().rglob("*.py"), *HERE.rglob("*.py")]
        digest = hashlib.sha256(b"".join(one.read_bytes() for one in sorted(sources))).hexdigest()
        lines = path.read_text().splitlines() if path.exists() else []
        if lines[:1] == [digest]:
            self._right = set(lines[1:])
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{digest}\n")

    def knows(self, task: Task) -> bool:
        """Whether it was tried, and right."""
        return json.dumps(task) in self._right

    def right(self, task: Task) -> None:
        """It was tried, and right."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{json.dumps(task)}\n")


def trials(tasks: Iterable[Task], live: planting.Live, jobs: int) -> Iterator[tuple[Task, Outcome]]:
    """Run them, so many at once; how each ended, in that order."""
    waiting = iter(tasks)
    running: list[tuple[Task, Trial]] = []
    while True:
        while len(running) < jobs and (task := next(waiting, None)) is not None:
            trial = Trial(task.program, guarded=True, fault=task.fault, live=live)
            running.append((task, trial))
        if not running:
            return
        for task, trial in list(running):
            outcome = trial.outcome()
            if outcome is not None:
                running.remove((task, trial))
                yield task, outcome
        time.sleep(0.005)


def chosen(
    program: str,
    reached: dict[str, set[Way]],
    tried: set[Way],
    kinds: dict[str, list[str]],
    options: argparse.Namespace,
) -> list[Task]:
    """What is planted in one program, in a random order; `kinds`: what each function may do."""
    drawn = random.Random(f"{options.seed} {program}")
    those = [name for name, ways in reached.items() if options.whole or not ways <= tried]
    if options.function:
        those = [name for name in those if options.function in name]
    drawn.shuffle(those)
    if options.sample:
        those = those[: options.sample]
    for name in those:
        tried |= reached[name]
    any_kind = options.kind == "any"
    return [
        Task(program, Fault(name, drawn.choice(kinds[name]) if any_kind else options.kind))
        for name in those
        if any_kind or options.kind in kinds[name]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = {**programs.PROGRAMS, **programs.GUARDED_BY_THEMSELVES}
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(every))
    parser.add_argument("--function", help="only those with this in their name")
    parser.add_argument("--kind", choices=(*KINDS, "any"), default="raise", help="what they do")
    parser.add_argument("--sample", type=int, help="only so many, drawn at random, of each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="each in every program that calls it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--anew", action="store_true", help="remember nothing")
    parser.add_argument("--strict", action="store_true", help="also names that none can undo")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    names = options.programs or [one for one in every if one not in programs.NEEDS]
    unknown = set(names) - set(every)
    if unknown:
        parser.error(f"unknown {unknown.pop()!r} (allowed: {', '.join(every)})")
    prepare(names)
    known, kinds = places()
    bare = {program: Trial(program, guarded=False).wait() for program in names}
    reached = {program: called(program, known) for program in names}
    live = load(name for functions in reached.values() for name in functions)
    record = Record(None if options.anew else RECORD)
    wrong = count = 0
    tried: set[Way] = set()
    for program in names:
        good = Trial(program, guarded=True, live=live).wait()
        for difference in good.differences(bare[program]):
            print(f"{program} without a fault: {difference}", flush=True)
            wrong += 1
        tasks = chosen(program, reached[program], tried, kinds, options)
        began, bad, fired = time.monotonic(), 0, 0
        left = [task for task in tasks if not record.knows(task)]
        for task, outcome in trials(left, live, options.jobs):
            found = list(outcome.differences(bare[program], task.fault, options.strict))
            bad += bool(found)
            fired += outcome.fired
            for difference in found:
                print(f"{program} {task.fault}: {difference}", flush=True)
            if not found:
                record.right(task)
            if options.verbose and not found:
                print(f"{program} {task.fault}: right {outcome.fired}", flush=True)
        count += len(tasks)
        wrong += bad
        print(
            f"{program}: {len(tasks)} of {len(reached[program])} functions, "
            f"{len(tasks) - len(left)} known, took place: {fired}, wrong: {bad}, "
            f"{time.monotonic() - began:.0f} s ({' '.join(good.result.get('codes', ()))})",
            flush=True,
        )
    print(f"{count} faults planted, wrong: {wrong}")
    return 1 if wrong else 0


def load(names: Iterable[str]) -> planting.Live:
    """Import the modules of the guard's with these functions, and nothing of others."""
    importlib.import_module(f"{PACKAGE}.runtime")
    for module in dict.fromkeys(name.partition(":")[0] for name in names):
        importlib.import_module(module)
    return planting.Live()


def prepare(names: list[str]) -> None:
    """Import what the programs need, and nothing of the guard's."""
    torch.set_num_threads(1)
    needed = {
        *("joblib", "dask", "concurrent.futures.process", "torch.distributed", "torch._dynamo"),
        "torch.nn.parallel",
        *(module for name in names for module in programs.NEEDS.get(name, ())),
    }
    for module in sorted(needed):
        importlib.import_module(module)
    assert not any(name.startswith(PACKAGE) for name in sys.modules)


if __name__ == "__main__":
    sys.exit(main())
