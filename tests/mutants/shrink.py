"""Proposes shorter programs for the pages of the linter's tests.

A part of a program is left out where all that is announced of the rest stays true, where every
mutation that no other program reaches is still reached, and where those that few programs reach are
still noticed if the whole program notices them. Each call that starts tasks stays, reported or not.
It writes a diff, for somebody to read: a program has to tell a story, too.
"""

from __future__ import annotations

import argparse
import builtins
import difflib
import functools
import hashlib
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import judging
from mutations import PROBE, mutations_in
from program_pages import page_programs
from reductions import FILE, shorter
from shared_results import KEPT, LINTER

PAGES = Path(__file__).parents[1] / "lint" / "pages"
"""The pages whose programs `test_engine` checks."""
FEW = 12
"""So many programs at most reach a mutation that a shorter program has to notice still."""
PASSES = 2
"""How often each part of a program is tried."""
SAMPLE = 60
"""How many of these are tried for one program."""
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A program of a page."""


class Place(NamedTuple):
    """A program on a page.

    Attributes:
        page: the file.
        start: where its text begins.
        text: that text.
    """

    page: Path
    start: int
    text: str


def places(pages: Sequence[Path]) -> list[Place]:
    """The programs of pages, the longest first."""
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        first = text.index("\n## ")
        found += [Place(page, it.start(1), it[1]) for it in _BLOCK.finditer(text, first)]
    return sorted(found, key=lambda place: (-place.text.count("\n"), place))


class Shrinker:
    """Leaves out of programs what nothing depends on."""

    def __init__(self, lanes: int) -> None:
        sys.path.insert(0, str(PAGES.parent))
        self._engine: Any = importlib.import_module("test_engine")
        self._interpret = self._engine.interpret
        vars(self._engine)["interpret"] = self._counting
        self._calls = 0
        """How many calls of the last program start tasks in workers."""
        self._lanes = lanes
        self._mutations = mutations_in(LINTER)
        self._live = judging.loaded("gradguard_lint")
        self._instrumented = judging.instrumented_functions(self._live, self._mutations)
        self._reached: dict[str, list[int]] = {}
        self._frequency: Counter[int] = Counter()

    def record(self, programs: Sequence[Place]) -> None:
        """Find out what all programs reach, as far as no earlier run has."""
        linter = b"\0".join(path.read_bytes() for path in sorted(LINTER.rglob("*.py")))
        kept = KEPT / f"shrink-{hashlib.sha256(linter).hexdigest()[:24]}.json"
        known = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        tasks = [
            (it.text, functools.partial(self._told, it)) for it in programs if it.text not in known
        ]
        told = judging.in_lanes(tasks, self._lanes)
        known.update((text, json.loads(numbers or "[]")) for text, numbers in told)
        kept.write_text(json.dumps(known), encoding="utf-8")
        self._reached = {place.text: known[place.text] for place in programs}
        self._frequency.update(number for numbers in self._reached.values() for number in numbers)

    def shrunk(self, place: Place) -> str:
        """The shortest text that was found for a program."""
        own = [it for it in self._reached[place.text] if self._frequency[it] <= FEW]
        alone = {number for number in own if self._frequency[number] == 1}
        tried = random.Random(place.text).sample(own, min(SAMPLE, len(own)))
        killed = [*self._killed(place, tried)]
        text = place.text
        for _ in range(PASSES):
            text = self._after_one_pass(place._replace(text=text), alone, killed)
        return _formatted(text)

    def _after_one_pass(self, place: Place, alone: set[int], killed: list[int]) -> str:
        """What is left of a program once each of its parts was tried."""
        at = 0
        self._passes(place)
        calls = self._calls  # those of which nothing is reported are what a program is about, too
        while (fewer := next(islice(shorter(place.text), at, None), None)) is not None:
            other = place._replace(text=fewer)
            same = self._passes(other) and self._calls == calls
            if same and self._keeps(other, alone, killed):
                place = other
            else:
                at += 1
        return place.text

    def _counting(self, *args: Any) -> Any:
        program = self._interpret(*args)
        self._calls += len(program.calls)
        return program

    def _passes(self, place: Place) -> bool:
        """Whether all that the text announces is so."""
        self._calls = 0
        page = place.page.read_text(encoding="utf-8")
        imports = page[: page.index("\n## ")]
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "page.md")
            copy.write_text(f"{imports}\n## x\n\n```python\n{place.text}```\n", encoding="utf-8")
            try:
                self._engine.check(page_programs(copy)[0].files, Path(folder, "files"))
            except Exception:  # whatever the linter makes of a program that is none
                return False
        return True

    def _keeps(self, place: Place, alone: set[int], killed: list[int]) -> bool:
        """Whether it reaches, and notices, what is asked of it."""
        task = functools.partial(self._told, place)
        ((_, told),) = judging.in_lanes([(0, task)], 1)
        if not alone <= set(json.loads(told or "[]")):
            return False
        for number in killed:
            if not self._killed(place, [number]):
                killed.remove(number)
                killed.insert(0, number)  # what it loses once, others lose, too
                return False
        return True

    def _told(self, place: Place) -> str:
        """The mutations that it reaches, as JSON."""
        numbers: set[int] = set()
        setattr(builtins, PROBE, numbers.add)
        for function, code in self._instrumented:
            function.__code__ = code
        self._passes(place)
        return json.dumps(sorted(numbers))

    def _killed(self, place: Place, numbers: Iterable[int]) -> set[int]:
        """The mutations that it notices."""
        tasks = ((it, functools.partial(self._noticed, place, it)) for it in numbers)
        return {number for number, told in judging.in_lanes(tasks, self._lanes) if told != "no"}

    def _noticed(self, place: Place, number: int) -> str:
        signal.setitimer(signal.ITIMER_PROF, judging.CPU_LIMIT)
        return (
            "no"
            if not judging.put(self._live, self._mutations[number]) or self._passes(place)
            else "yes"
        )


def _formatted(text: str) -> str:
    command = ["ruff", "format", "--line-length=100", "-"]
    parts = [
        part
        if not part or FILE.match(part)
        else subprocess.run(
            [sys.executable, "-m", *command], input=part, capture_output=True, text=True, check=True
        ).stdout
        for part in FILE.split(text)
    ]
    return "".join(
        f"{part.rstrip()}\n\n\n"
        if number < len(parts) - 1 and not FILE.match(part) and part
        else part
        for number, part in enumerate(parts)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help="names of pages; all of them otherwise")
    parser.add_argument("--programs", type=int, default=10, help="so many, the longest first")
    parser.add_argument("--skip", type=int, default=0, help="without so many of the longest")
    parser.add_argument("--lanes", type=int, default=os.cpu_count(), help="processes at a time")
    args = parser.parse_args()
    everything = places(sorted(PAGES.glob("*.md")))
    shrinker = Shrinker(args.lanes)
    shrinker.record(everything)
    wanted = [it for it in everything if not args.pages or it.page.stem in args.pages]
    for place in wanted[args.skip : args.skip + args.programs]:
        text = place.page.read_text(encoding="utf-8")
        after = place.start + len(place.text)
        changed = text[: place.start] + shrinker.shrunk(place) + text[after:]
        name = place.page.relative_to(PAGES.parents[2]).as_posix()
        before, now = (it.splitlines(keepends=True) for it in (text, changed))
        sys.stdout.writelines(difflib.unified_diff(before, now, f"a/{name}", f"b/{name}"))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
