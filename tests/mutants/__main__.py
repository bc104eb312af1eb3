"""Changes the code a little, at many places in turn, and tells which changes no test notices.

`make mutants` draws a sample. What survives is dead code, or a promise that no test holds us to;
or the change makes no difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import copies
import judging
import pytest
from mutations import Mutation, drawn, mutations_in
from shared_results import GUARD, KEPT, LINTER
from verdicts import Verdict, show

ROOT = Path(__file__).parents[2]
LINT_TESTS = ROOT / "tests" / "lint"
NO_JUDGES = (
    "test_pre_commit.py",
    "test_spawning.py",
    "test_project.py::test_what_a_worker_leaves_undone_is_done_all_the_same",
    "test_programs.py::test_the_standard_library_is_read_without_a_fault",
    "test_repairs.py::test_repaired_programs_have_what_was_lost",
)
"""Tests that run other processes or end this one, or that take long."""


def sample_of(found: list[Mutation], args: argparse.Namespace) -> list[Mutation]:
    """Those that are to be judged."""
    return drawn([it for it in found if args.only in it.path], args.sample, args.seed)


def of_linter(args: argparse.Namespace) -> tuple[dict[Mutation, Verdict], int]:
    """The verdicts of the linter's tests; and how many mutations there are."""
    found = mutations_in(LINTER)
    judge = judging.Judge("gradguard_lint", sample_of(found, args), args.lanes)
    options = ["-p", "no:asyncio", "-p", "no:cacheprovider", "-q", "-q", "-s"]
    options += [f"--deselect={LINT_TESTS.relative_to(ROOT) / name}" for name in NO_JUDGES]
    pytest.main([*options, *(args.tests or [str(LINT_TESTS)])], plugins=[judge])
    return judge.verdicts, len(found)


def of_guard(args: argparse.Namespace) -> tuple[dict[Mutation, Verdict], int]:
    """The verdicts of the guard's cases; and how many mutations of its decisions there are."""
    found = mutations_in(GUARD / "runtime" / "pitfalls")
    names = args.tests or copies.cases()
    sources = [path for folder in (GUARD, copies.CASES) for path in sorted(folder.rglob("*.py"))]
    content = b"\0".join(path.read_bytes() for path in [*sources, Path(copies.__file__)])
    record = KEPT / f"mutants-{hashlib.sha256(content).hexdigest()[:24]}.json"
    known = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    unknown = [name for name in names if name not in known]
    for name, case in copies.recorded(GUARD, found, unknown, args.lanes):
        known[name] = case
        record.write_text(json.dumps(known), encoding="utf-8")
    judges = {name: copies.Case(*known[name]) for name in names}
    numbers = {mutation: number for number, mutation in enumerate(found)}
    sample = [(numbers[it], it) for it in sample_of(found, args)]
    return dict(copies.judged(GUARD, sample, judges, args.lanes)), len(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("part", choices=["lint", "guard"])
    parser.add_argument("tests", nargs="*", help="other tests, or cases, than all")
    parser.add_argument("--sample", type=int, help="how many mutations are drawn")
    parser.add_argument("--only", default="", help="a part of the path of files: rules/gg304")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=os.cpu_count(), help="processes at a time")
    args = parser.parse_args()
    args.sample = args.sample or (400 if args.part == "lint" else 60)
    began = time.monotonic()
    verdicts, number = of_linter(args) if args.part == "lint" else of_guard(args)
    show(verdicts, ROOT)
    print(
        f"seed {args.seed}, {len(verdicts)} of {number} mutations, {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
