"""Judges mutations of the guard by its cases: their processes, and workers, import a changed copy.

Which cases reach which mutation is recorded once, and kept until the guard or a case changes.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutations import PROBE, Mutation, instrumented, mutated
from verdicts import Verdict

CASES = Path(__file__).parents[1] / "guard_cases"
REACHED = "MUTANTS_REACHED"
"""The environment variable with the folder in which processes leave what they reach."""
MOST = 6
"""How many files judge one mutation: those that reach the fewest others."""
SITE = f"""\
import builtins, os

known = set()

def reached(number):
    if number not in known:
        known.add(number)
        open(os.path.join(os.environ[{REACHED!r}], str(number)), "w").close()

builtins.{PROBE} = reached
"""


class Case(NamedTuple):
    """How one file of guard cases ran.

    Attributes:
        passed: whether its tests passed.
        seconds: how long they took.
        numbers: the mutations that they reach.
    """

    passed: bool
    seconds: float
    numbers: list[int]


def cases(pattern: str = "case_*") -> list[str]:
    """The files of guard cases."""
    return sorted(path.stem for path in (CASES / "programs").glob(f"{pattern}.py"))


def recorded(
    package: Path, found: Sequence[Mutation], names: Sequence[str], lanes: int
) -> Iterator[tuple[str, Case]]:
    """How each case runs, and which of all mutations of a package it reaches."""
    by_path: defaultdict[str, list[tuple[int, Mutation]]] = defaultdict(list)
    for number, mutation in enumerate(found):
        by_path[mutation.path].append((number, mutation))
    changed = {
        path: instrumented(Path(path).read_text(encoding="utf-8"), numbered)
        for path, numbered in by_path.items()
    }
    with _copy(package, changed) as folder, ThreadPoolExecutor(lanes) as pool:
        (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")

        def ran(name: str) -> Case:
            began = time.monotonic()
            reached = folder / name
            reached.mkdir()
            passed = _passes(name, folder, 900, reached)
            seconds = time.monotonic() - began
            return Case(passed, seconds, sorted(int(path.name) for path in reached.iterdir()))

        yield from zip(names, pool.map(ran, names), strict=True)


def judged(
    package: Path,
    sample: Sequence[tuple[int, Mutation]],
    known: Mapping[str, Case],
    lanes: int,
) -> Iterator[tuple[Mutation, Verdict]]:
    """Run, for each mutation of a sample, the cases that reach it until one fails.

    Args:
        package: the folder of the package.
        sample: mutations, by the numbers under which they were recorded.
        known: how the cases ran without a mutation.
        lanes: how many run at a time.
    """

    def judge(number: int, mutation: Mutation) -> Verdict:
        tests = sorted(
            (name for name, case in known.items() if case.passed and number in case.numbers),
            key=lambda name: (len(known[name].numbers), name),
        )[:MOST]
        text = Path(mutation.path).read_text(encoding="utf-8")
        with _copy(package, {mutation.path: mutated(text, mutation)}) as folder:
            for name in tests:
                if not _passes(name, folder, 60 + 5 * known[name].seconds):
                    return Verdict("killed", name, tuple(tests))
        return Verdict("survived" if tests else "not reached", "", tuple(tests))

    with ThreadPoolExecutor(lanes) as pool:
        verdicts = pool.map(lambda it: judge(*it), sample)
        for (_, mutation), verdict in zip(sample, verdicts, strict=True):
            yield mutation, verdict


@contextlib.contextmanager
def _copy(package: Path, changed: Mapping[str, ast.Module]) -> Iterator[Path]:
    """A folder with the package, some files of which are changed; all others are links."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copied = Path(folder, package.name)
        shutil.copytree(package, copied, copy_function=os.symlink)
        for path, tree in changed.items():
            file = copied / Path(path).relative_to(package)
            file.unlink()
            file.write_text(f"{ast.unparse(tree)}\n", encoding="utf-8")
        yield Path(folder)


def _passes(name: str, folder: Path, limit: float, reached: Path | None = None) -> bool:
    """Whether the tests of one file of cases pass, with the package that lies in `folder`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "GRADGUARD_GUARD_CASES": name,
        "CI": "true",  # nothing is taken as known of the guard
        REACHED: str(reached or ""),
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    command += ["-x", "-q", "-k", name, str(CASES / "test_cases.py")]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
