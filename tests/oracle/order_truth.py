"""What the programs of `order_programs` certainly do, and what the linter says of them.

A program runs with stand-ins once for each choice of its options; where it catches exceptions,
once more with one at each of its steps. A finding is false where no run has the harm at its line;
harm is missed where each run that comes to a line has it there. All of it happens in a child, whose
command line is ``order_truth.py FIRST COUNT FOLDER``.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

from judge import answer, linted
from order_programs import Drawn, draw
from stand_ins import Endless, Run, stand_ins

CODES = ("GG203", "GG303")


@dataclass
class Judged:
    """What the linter finds in some programs, held against the truth.

    Attributes:
        programs: how many.
        findings: how many in them.
        sure: how many certain harms there are.
        false: the findings that are wrong, with the place.
        missed: the certain harms that are not found.
    """

    programs: int = 0
    findings: int = 0
    sure: int = 0
    false: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


def judge_orders(seeds: range, folder: Path) -> Judged:
    """What the linter finds in the programs with these numbers, which are left in `folder`.

    Raises:
        AssertionError: the child hung, or ended otherwise than with its verdicts.
    """
    return Judged(**answer(__file__, seeds, folder))


def run_once(drawn: Drawn, code: CodeType, run: Run, given: dict[str, Any], here: set[str]) -> bool:
    """Run the program once; False where it is not one that anybody would write.

    `given`: its options. `here`: the environment variables that are set.
    """
    words = [run.path]
    for name, value in given.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words += [f"--{name}", str(value)]
    names: dict[str, Any] = {"__name__": "__main__" if drawn.is_script else "drawn"}
    variables = dict.fromkeys(here, "1")
    with (
        mock.patch.dict(sys.modules, stand_ins(run)),
        mock.patch.dict(os.environ, variables),
        mock.patch.object(sys, "argv", words),
    ):
        sys.setprofile(run.enter)
        try:
            exec(code, names)
            if not drawn.is_script:
                names["main"](**given)
        except (NameError, TypeError, AttributeError, Endless):
            return False
        except SystemExit as error:
            return error.code != 2  # options that it does not know
        except Exception:
            pass
        finally:
            sys.setprofile(None)
    return True


@dataclass
class Truth:
    """What becomes of a program.

    Attributes:
        sure: the harm that each run has that comes to the line, and one with the usual options.
        possible: the harm that some run has.
        entered: the functions that some run calls.
    """

    sure: set[tuple[int, str]]
    possible: set[tuple[int, str]]
    entered: set[str]


def choices_of(drawn: Drawn) -> Iterator[tuple[dict[str, Any], set[str], bool]]:
    """What may be given to a program: options, environment variables, a GPU."""
    for values in itertools.product(*drawn.options.values()):
        given = dict(zip(drawn.options, values, strict=True))
        for number in range(len(drawn.variables) + 1):
            for here in itertools.combinations(drawn.variables, number):
                yield given, set(here), True
                if "is_available" in drawn.source:
                    yield given, set(here), False


def truth_of(drawn: Drawn, code: CodeType, path: str) -> Truth | None:
    """What becomes of a program; None where it is not a proper one."""
    came: dict[int, int] = defaultdict(int)
    harmed: dict[tuple[int, str], int] = defaultdict(int)
    usual: set[tuple[int, str]] = set()
    entered: set[str] = set()
    for given, here, present in choices_of(drawn):
        run = Run(path, present)
        if not run_once(drawn, code, run, given, here):
            return None
        entered |= run.entered
        for line in run.came:
            came[line] += 1
        for harm in run.harm:
            harmed[harm] += 1
        if drawn.usual.items() <= given.items():
            usual |= run.harm
    sure = {harm for harm, times in harmed.items() if times == came[harm[0]]}
    return Truth(sure & usual, set(harmed), entered)
    return Truth(sure, set(harmed))


def with_faults(drawn: Drawn, code: CodeType, path: str) -> Truth:
    """The same of the runs in which one step fails."""
    harm: set[tuple[int, str]] = set()
    spared: set[tuple[int, str]] = set()
    entered: set[str] = set()
    for given, here, present in choices_of(drawn):
        for fault in itertools.count(1):
            run = Run(path, present, fault)
            run_once(drawn, code, run, given, here)
            harm |= run.harm
            entered |= run.entered
            spared |= set(itertools.product(run.came, CODES)) - run.harm
            if run.steps < fault:
                break
    return Truth(harm - spared, harm, entered)


def told_of(path: str) -> set[tuple[int, str]]:
    """What the linter finds in a program: lines and codes."""
    return {(raw["line"], raw["code"]) for raw in linted(path) if raw["code"] in CODES}


def in_others(
    code: CodeType, entered: set[str], told: set[tuple[int, str]]
) -> set[tuple[int, str]]:
    """What is found in functions that no run calls: for the linter, anybody may."""
    lines: dict[int, str] = {}
    parts = [code]
    for part in parts:
        parts += [it for it in part.co_consts if isinstance(it, CodeType)]
        if part.co_name not in ("<genexpr>", "<listcomp>"):
            lines |= {line: part.co_name for *_, line in part.co_lines() if line is not None}
    return {it for it in told if lines.get(it[0]) not in {"<module>", *entered}}


def judge(seeds: range, folder: Path) -> Judged:
    """As `judge_orders`, in this process."""
    judged = Judged()
    for seed in seeds:
        drawn = draw(seed)
        path = folder / f"order_{seed}.py"
        path.write_text(drawn.source, encoding="utf-8")
        code = compile(drawn.source, path, "exec")
        truth = truth_of(drawn, code, str(path))
        if truth is None:
            continue
        told = told_of(str(path))
        told -= in_others(code, truth.entered, told)
        false, missed = told - truth.possible, truth.sure - told
        if (false or missed) and "try:" in drawn.source:
            failing = with_faults(drawn, code, str(path))
            false, missed = false - failing.possible, missed & failing.sure
        if '!= "cpu"' in drawn.source:  # who asks for the CPU uses no GPU
            missed = {it for it in missed if it[1] != "GG203"}
        judged.programs += 1
        judged.findings += len(told)
        judged.sure += len(truth.sure)
        judged.false += [f"{path}:{line} {code}" for line, code in sorted(false)]
        judged.missed += [f"{path}:{line} {code}" for line, code in sorted(missed)]
    return judged


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    print(json.dumps(asdict(judge(range(first, first + count), Path(sys.argv[3])))))
