"""The catalogue: one `Pitfall` for each code, in `entries/`, read by lint, runtime and docs.

To add a pitfall, add one module to `entries/`, named after its code in lower case, that sets
``PITFALL``. Listing codes imports no entry; `get` imports one.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Literal

from pytest_gradguard.pitfalls import entries, links
from pytest_gradguard.pitfalls.links import Link
from pytest_gradguard.records import field, fields
from pytest_gradguard.severity import Severity
from pytest_gradguard.suggestions import did_you_mean

__all__ = [
    "HOME",
    "Pitfall",
    "Severity",
    "catalogue",
    "codes",
    "expand",
    "files",
    "find",
    "get",
    "links",
]

HOME = "https://github.com/gradguard/pytest-gradguard"
"""Where the project and its documentation are."""

_FILE_HEADER = re.compile(r"^# (\w+\.py)\n", re.MULTILINE)

_CASES = {
    "autotune": "`parallel_iterations=tf.data.AUTOTUNE`",
    "datasets": "a library that makes the pool itself, such as `datasets` or pathos",
    "local function": "a closure or lambda",
    "method": "a method of the wrapped module",
    "model": "a module",
    **{
        f"only {name}": f"a worker that seeds other generators, but not {title}'s"
        for name, title in (
            *(("numpy", "NumPy"), ("random", "Python")),
            *(("tensorflow", "TensorFlow"), ("torch", "torch")),
        )
    },
    "other arrays": "arrays of other packages",
    "result": "what a worker returns",
    "shape": "a `TensorSpec` without a shape",
    "state": "a state dict",
    "torch.utils.data": "`DataLoader`",
    "transform": "a call inside a transform of `torch.func` or JAX",
    "training loop": "a training loop in the wrapped module",
    "weights": "weights that are loaded onto the GPU",
    "whole program": "a worker that has a model on the GPU, or is a `Process`",
}
"""What the cases are called that are no names of libraries or classes."""


@fields
class Pitfall:
    """One pitfall: what every detector, report and page says of it.

    Attributes:
        code: ``GG`` and three digits.
        name: the kebab-case name.
        title: one line, no full stop.
        severity: the severity of its findings, unless a confirmed harm raises it.
        happens: what happens; every sentence was verified by running it.
        why: the mechanism behind it.
        fix: what to do instead; the first sentence stands alone in reports.
        cases: what reports say in its place, by what the finding is about: a library, a framework,
            a class, or another name that the pitfall's rule or check gives to the case.
        bad: a complete program that has the pitfall; `files` takes it apart where a line such as
            ``# main.py`` starts each of its files. ``# prints: …`` and ``# raises: …`` say what
            its lines do.
        good: the same program without it.
        lint: where the linter reports it, or None where it has no rule.
        runtime: when the guard reports it, or None where it has no check.
        reach: what the guard sees of it, and what not, where that is worth knowing.
        part: its part in the story of a lost gradient: the loss itself (``lost``), or what was
            ``sent`` to a worker or ``returned`` from one. Reports tell such a story once.
        silence: when it is right to silence it.
        links: where other projects document what it rests on.
    """

    code: str
    name: str
    title: str
    severity: Severity
    happens: str
    why: str
    fix: str
    bad: str
    good: str
    lint: str | None = None
    runtime: str | None = None
    reach: str = ""
    cases: Mapping[str, str] = field(default_factory=dict)
    part: Literal["lost", "sent", "returned"] | None = None
    silence: str = ""
    links: tuple[Link, ...] = ()

    @property
    def lint_note(self) -> str:
        """Where the linter reports it, or that it does not."""
        return self.lint or "Not reported by the linter."

    @property
    def runtime_note(self) -> str:
        """When the guard reports it, or that it does not."""
        if self.runtime is None:
            return "Not reported at run time."
        return f"{self.runtime} {self.reach}".rstrip()

    @property
    def page(self) -> str:
        """The address of its documentation."""
        return f"{HOME}/blob/main/docs/pitfalls/{self.code.lower()}.md"

    @property
    def advice(self) -> str:
        """The first sentence of `fix`, for a report of one finding."""
        return re.split(r"(?<=\.)\s", self.fix, maxsplit=1)[0]

    def advice_for(self, case: str) -> str:
        """What a report of one finding says of the way out, where it is about `case`."""
        return self.cases.get(case, self.advice)

    @property
    def other_advice(self) -> dict[str, str]:
        """What reports say in place of `advice`, each once, by the cases that it is for."""
        cases: dict[str, list[str]] = {}
        for case, advice in self.cases.items():
            if advice != self.advice:
                cases.setdefault(advice, []).append(_CASES.get(case, f"`{case}`"))
        return {" and ".join(names): advice for advice, names in cases.items()}


@cache
def codes() -> tuple[str, ...]:
    """Every code of the catalogue, sorted."""
    names = os.listdir(entries.__path__[0])  # pkgutil imports typing, and opens each file
    return tuple(
        sorted(it[:-3].upper() for it in names if not it.startswith("__") and it.endswith(".py"))
    )


@cache
def get(code: str) -> Pitfall:
    """The entry of `code`.

    Raises:
        KeyError: there is no such code.
    """
    if code not in codes():
        raise KeyError(code)
    module = importlib.import_module(f"{entries.__name__}.{code.lower()}")
    pitfall: Pitfall = module.PITFALL
    return pitfall


def catalogue() -> Iterator[Pitfall]:
    """Every entry, sorted by code."""
    return (get(code) for code in codes())


def find(text: str) -> Pitfall:
    """The entry whose code or name is `text`, in capitals or not.

    Raises:
        ValueError: there is none; the message names `text` and what is allowed.
    """
    wanted = text.strip()
    if wanted.upper() in codes():
        return get(wanted.upper())
    for pitfall in catalogue():
        if pitfall.name == wanted.lower():
            return pitfall
    family = [code for code in codes() if wanted and code.startswith(wanted.upper())]
    if family:
        raise ValueError(f"{text!r} stands for several codes (allowed: {', '.join(family)})")
    raise _unknown(text, "a code such as GG103, or a pitfall's name")


def expand(selectors: Iterable[str]) -> frozenset[str]:
    """The codes that `selectors` stand for: codes, prefixes such as ``GG1``, or pitfalls' names.

    Raises:
        ValueError: a selector that stands for no code; the message names it and what is allowed.
    """
    __tracebackhide__ = True
    selected: set[str] = set()
    for selector in selectors:
        wanted = selector.upper()
        matches = [code for code in codes() if wanted and code.startswith(wanted)]
        matches = matches or [one.code for one in catalogue() if one.name.upper() == wanted]
        if not matches:
            raise _unknown(selector, "a code such as GG103, a prefix such as GG1, or a name")
        selected.update(matches)
    return frozenset(selected)


def _unknown(text: str, allowed: str) -> ValueError:
    """The error for what is no code: with the closest one there is."""
    meant = did_you_mean(text.strip(), (*codes(), *(pitfall.name for pitfall in catalogue())))
    return ValueError(f"unknown code {text!r}{meant} (allowed: {allowed}; see `gradguard rules`)")


def files(program: str) -> dict[str, str]:
    """The files of an entry's `bad` or `good` program by name; the last one is the one to run."""
    before, *rest = _FILE_HEADER.split(program)
    if not rest:
        return {"main.py": before}
    return {name: text.strip("\n") + "\n" for name, text in zip(rest[::2], rest[1::2], strict=True)}
