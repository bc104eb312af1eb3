"""Draws many programs, runs them, and says how often the guard was wrong (`make fuzz`).

Exit status 1: a result changed under the guard, or a rate is over its limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from judge import DRAWN, Verdict, run_carrying, run_programs
from order_truth import judge_orders

FAMILIES = (*DRAWN, "order")
MISSES, FALSE_ERRORS = 0.03, 0.02
"""The most that may be missed of the wrong programs, and called errors of the right ones."""
FALSE_FINDINGS = 0.05
"""The most of the linter's findings that may be false where the order of what happens decides."""
AT_ONCE = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--programs", type=int, default=300, help="of each family")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first number")
    parser.add_argument(
        "--parallel", action="store_true", help="try pytest_gradguard.parallel, not the guard"
    )
    options = parser.parse_args()
    unknown = set(options.families) - set(FAMILIES)
    if unknown:
        parser.error(f"unknown family {unknown.pop()!r} (allowed: {', '.join(FAMILIES)})")
    folder = Path(tempfile.mkdtemp(prefix="gradguard-fuzz-"))
    if options.parallel:
        seeds = range(options.seed, options.seed + options.programs)
        wrong = [
            one
            for first in seeds[::AT_ONCE]
            for one in run_carrying(range(first, min(first + AT_ONCE, seeds.stop)), folder)
        ]
        print(f"parallel: {len(seeds)} programs from seed {seeds.start}, wrong: {len(wrong)}")
        print("\n".join(f"  {one}" for one in wrong))
        return 1 if wrong else 0
    good = [
        (_ordered if family == "order" else partial(_tried, family))(
            options.seed, options.programs, folder
        )
        for family in options.families or FAMILIES
    ]
    return 0 if all(good) else 1


def _tried(framework: str, seed: int, programs: int, folder: Path) -> bool:
    verdicts: list[Verdict] = []
    for first in range(seed, seed + programs, AT_ONCE):
        count = min(AT_ONCE, seed + programs - first)
        own = folder / f"{framework}_{first}"
        own.mkdir()
        verdicts += run_programs(framework, range(first, first + count), own)
    wrong = [verdict for verdict in verdicts if verdict.differs]
    right = [verdict for verdict in verdicts if not verdict.differs]
    missed = [verdict for verdict in wrong if verdict.missed]
    false = [verdict for verdict in right if verdict.false_error]
    foreseen = [verdict for verdict in right if verdict.foreseen_wrongly]
    changed = [verdict for verdict in verdicts if verdict.changed]
    compared = [verdict for verdict in verdicts if verdict.compared_wrongly]
    print(f"{framework}: {len(verdicts)} programs from seed {seed}")
    print(f"  results changed by the guard: {len(changed)}")
    print(f"  gradients differ: {len(wrong)}, of these missed: {len(missed)}")
    print(
        f"  gradients equal: {len(right)}, of these called errors: {len(false)}, "
        f"by the linter: {len(foreseen)}"
    )
    print(f"  compared wrongly: {len(compared)}")
    listed = {"changed": changed, "missed": missed, "false error": false, "linter": foreseen}
    listed["compared"] = compared
    for what, which in listed.items():
        for verdict in which:
            codes = " ".join([*verdict.codes, *(f"{code} (lint)" for code in verdict.foreseen)])
            print(f"    {what}: {verdict.program} {codes}")
    return (
        not changed
        and len(missed) <= MISSES * len(wrong)
        and len(false) <= FALSE_ERRORS * len(right)
        and not foreseen
        and not compared
    )


def _ordered(seed: int, programs: int, folder: Path) -> bool:
    own = folder / "order"
    own.mkdir()
    seeds = range(seed, seed + programs)
    all_judged = [
        judge_orders(range(first, min(first + 4 * AT_ONCE, seeds.stop)), own)
        for first in seeds[:: 4 * AT_ONCE]
    ]
    findings = sum(judged.findings for judged in all_judged)
    sure = sum(judged.sure for judged in all_judged)
    false = [one for judged in all_judged for one in judged.false]
    missed = [one for judged in all_judged for one in judged.missed]
    print(f"order: {sum(judged.programs for judged in all_judged)} programs from seed {seed}")
    print(f"  findings: {findings}, of these false: {len(false)}")
    print(f"  certain harm: {sure}, of this missed: {len(missed)}")
    print("\n".join(f"    false: {one}" for one in false))
    print("\n".join(f"    missed: {one}" for one in missed))
    return len(false) <= FALSE_FINDINGS * findings and len(missed) <= MISSES * sure


if __name__ == "__main__":
    sys.exit(main())
