"""The matrix of versions that gradguard is run with: `make versions`.

Of each library: the oldest release that is supported, the highest of each major version (where
there is but one, two more in between), and the newest. In a cell one library has such a release,
and everything else is what `constraints.txt` and pip choose on the usual Python. In the corners all
of them are the oldest, or the newest, at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from releases import PYTHONS, ROOT, Releases, dependencies, key, recorded

USUAL = "3.11"
"""The Python of the cells that vary a library."""
ABSENT = ("3.14",)
"""The Pythons that were not there when the record was made."""
PACKAGES = {"tensorflow-cpu": "tensorflow"}
"""What a distribution is called in programs, where that is another name."""

PLAIN = (
    "tests/plugin/test_session.py",
    "tests/plugin/test_settings.py",
    "tests/cli/test_doctor.py",
)
JOBLIB = (*PLAIN, "tests/truth/test_truth_joblib.py", "tests/runtime/test_batches.py")
TORCH = (
    "tests/runtime/test_loader.py",
    "tests/runtime/test_modes.py",
    "tests/runtime/test_transforms.py",
    "tests/runtime/test_torch_engine.py",
    "tests/runtime/test_torch_settings.py",
    "tests/truth/test_truth_torch_crossing.py",
)
TENSORFLOW = (
    "tests/runtime/test_tapes.py",
    "tests/truth/test_truth_tensorflow.py",
    "tests/gradients/test_tensorflow.py",
)
GUARD_CASES = "tests/guard_cases/test_cases.py"
PROGRAMS = "tests/guard_cases/programs/"
"""The programs that `GUARD_CASES` runs: a cell takes some of them."""
TESTS = {
    "joblib": JOBLIB,
    "torch": TORCH,
    "tensorflow-cpu": (
        *TENSORFLOW,
        f"{PROGRAMS}case_tf_crossing.py",
        f"{PROGRAMS}case_tf_tape.py",
    ),
    "keras": (
        *TENSORFLOW,
        f"{PROGRAMS}case_keras_torch.py",
        f"{PROGRAMS}case_tf_crossing.py",
        f"{PROGRAMS}case_tf_reads.py",
    ),
    "dask": (
        "tests/runtime/test_dask.py",
        "tests/runtime/test_dask_nodes.py",
        "tests/truth/test_truth_dask.py",
        f"{PROGRAMS}case_dask.py",
    ),
    "scikit-learn": (
        "tests/truth/test_truth_estimators.py",
        f"{PROGRAMS}case_sklearn.py",
        f"{PROGRAMS}case_skorch.py",
    ),
    "pytest": (*PLAIN, "tests/plugin/test_outcomes.py", "tests/plugin/test_fixture.py"),
    "pytest-xdist": PLAIN,
}
"""By the library that a cell varies: the tests that it runs."""
LONG = {
    "joblib": (
        f"{PROGRAMS}case_arguments.py",
        f"{PROGRAMS}case_backends.py",
        f"{PROGRAMS}case_memory_maps.py",
        f"{PROGRAMS}case_results.py",
    ),
    "torch": (
        "tests/gradients/test_reasons.py",
        "tests/gradients/test_every_reason.py",
        f"{PROGRAMS}case_backward.py",
        f"{PROGRAMS}case_ddp.py",
        f"{PROGRAMS}case_loader.py",
        f"{PROGRAMS}case_transforms.py",
    ),
}
"""By library: further tests, which take minutes; only the corners run them, and the Pythons."""
ALL = tuple(
    dict.fromkeys(test for name, tests in TESTS.items() for test in (*tests, *LONG.get(name, ())))
)
"""Those of the corners."""
FRAMEWORKS = ("torch", "tensorflow-cpu", "numpy")
COMMON = ("joblib", "pytest", "pytest-xdist", "hypothesis", "jsonschema")
WITHOUT_FRAMEWORKS = (
    "tests/cli/test_main.py",
    "tests/cli/test_explain_rules.py",
    "tests/lint/test_command.py",
    "tests/lint/test_newer_syntax.py",
    "tests/plugin/test_settings.py",
    "tests/reports/test_text.py",
    "tests/runtime/test_patching.py",
    "tests/truth/test_truth_joblib.py",
)
"""Tests that need no framework: those of the corners that continuous integration can afford."""
LIGHT = ("joblib", "pytest", "pytest-xdist")
NEEDS = {
    "tensorflow-cpu": ("dask[distributed]", "scikit-learn"),
    "keras": ("keras", "dask[distributed]", "scikit-learn"),
    "dask": ("dask[distributed]", "scikit-learn"),
    "scikit-learn": ("scikit-learn", "skorch"),
}
"""What the tests of a library need beside `COMMON` and `FRAMEWORKS`."""
UNDECLARED = {("scikit-learn", "1.3.0"): ("numpy<2",), ("joblib", "1.2.0"): ("numpy<2",)}
"""By a release: what it needs without saying so to pip, since that came later."""


@dataclass(frozen=True)
class Cell:
    """One environment, and what runs in it.

    Attributes:
        name: what it is called.
        python: its Python.
        releases: by library, the release that it is about.
        install: what is installed beside these, in releases that pip chooses.
        tests: the files of tests.
        pre: pip may choose releases that are not final.
        constrained: by `constraints.txt`.
    """

    name: str
    python: str
    releases: tuple[tuple[str, str], ...]
    install: tuple[str, ...]
    tests: tuple[str, ...]
    pre: bool = False
    constrained: bool = False

    @property
    def requirements(self) -> list[str]:
        """What pip is asked for."""
        pinned = dict(self.releases)
        free = [one for one in self.install if one.partition("[")[0] not in pinned]
        extras = {one.partition("[")[0]: one for one in self.install}
        named = [f"{extras.get(name, name)}=={release}" for name, release in pinned.items()]
        return [*named, *free, *(one for own in self.releases for one in UNDECLARED.get(own, ()))]

    @property
    def arguments(self) -> list[str]:
        """What pytest is asked to run."""
        return list(dict.fromkeys(GUARD_CASES if _is_case(one) else one for one in self.tests))

    @property
    def cases(self) -> list[str]:
        """The names of the guard cases that it takes."""
        return [one.removeprefix(PROGRAMS)[:-3] for one in self.tests if _is_case(one)]


def _is_case(test: str) -> bool:
    return test.startswith(PROGRAMS)


def supported_pythons() -> list[str]:
    """The Pythons that the package declares, and newer ones that the index was asked for."""
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = re.search(r'requires-python = ">=([\d.]+)"', declared)
    assert needed is not None
    return [python for python in PYTHONS if key(python) >= key(needed[1])]


def chosen(releases: list[str]) -> list[str]:
    """Of the supported releases, newest first, those that are run; oldest first."""
    ordered = list(reversed(releases))
    majors = [list(group) for _, group in groupby(ordered, lambda one: key(one)[0])]
    highest = [major[-1] for major in majors]
    if len(majors) == 1:
        last_of_minor = [list(g)[-1] for _, g in groupby(ordered, lambda one: key(one)[:2])]
        between = last_of_minor[1:-1]
        highest += [between[len(between) * k // 3] for k in (1, 2)] if len(between) > 1 else between
    return sorted({ordered[0], *highest}, key=key)


def cells(releases: Releases | None = None) -> list[Cell]:
    """The whole matrix, the corners first."""
    known = recorded() if releases is None else releases
    pythons = supported_pythons()
    oldest = {library: list(known[library])[-1] for library in TESTS}
    newest = {library: next(iter(known[library])) for library in TESTS}
    needs = (one for needed in NEEDS.values() for one in needed)
    everything = tuple(dict.fromkeys((*COMMON, *FRAMEWORKS, *needs)))
    last = _newest_python(newest, known)
    found = [
        Cell("oldest", pythons[0], tuple(oldest.items()), (*everything, *_oldest_needed()), ALL),
        Cell("newest", last, tuple(newest.items()), everything, ALL),
        Cell("pre-releases", last, (), everything, ALL, pre=True),
        *(
            Cell(f"python-{python}", python, (), _offered_for(python, everything, known), ALL)
            for python in pythons
            if python not in (last, USUAL)
        ),
    ]
    for library, tests in TESTS.items():
        for release in chosen(list(known[library])):
            python = USUAL if USUAL in known[library][release] else known[library][release][0]
            install = (*COMMON, *FRAMEWORKS, *NEEDS.get(library, (library,)))
            own = ((library, release),)
            constrained = library != "torch"
            found.append(
                Cell(f"{library}-{release}", python, own, install, tests, False, constrained)
            )
    return found


def _offered_for(python: str, names: tuple[str, ...], known: Releases) -> tuple[str, ...]:
    """Those of the libraries that have a wheel for a Python, as far as it is known."""
    return tuple(
        name
        for name in names
        if (releases := known.get(name.partition("[")[0])) is None
        or any(python in pythons for pythons in releases.values())
    )


LATEST = ("3.14", "3.14t")
"""Pythons newer than the frameworks, and without a global lock: their corners need neither."""


def corners() -> list[Cell]:
    """The oldest and the newest of what installs in seconds, on the oldest and newest Python.

    The `LATEST` Pythons have what pip chooses.
    """
    found = []
    for cell, needed in zip(cells()[:2], (_oldest_needed(), ()), strict=True):
        light = tuple(one for one in cell.releases if one[0] in LIGHT)
        install = (*COMMON, "numpy", *needed)
        found.append(Cell(f"corner-{cell.name}", cell.python, light, install, WITHOUT_FRAMEWORKS))
    install = (*COMMON, "numpy")
    found += [Cell(f"corner-{one}", one, (), install, WITHOUT_FRAMEWORKS) for one in LATEST]
    return found


def _oldest_needed() -> tuple[str, ...]:
    """What the package depends on, in its oldest releases; the matrix itself is about pytest."""
    return tuple(f"{n}=={release}" for n, release in dependencies().items() if n != "pytest")


def _newest_python(newest: dict[str, str], known: Releases) -> str:
    """The newest Python for which each library's newest release has a wheel."""
    for python in reversed(PYTHONS):
        if all(python in known[library][release] for library, release in newest.items()):
            return python
    raise ValueError("no Python has the newest release of every library")


if __name__ == "__main__":
    for cell in cells():
        print(cell.name, cell.python, *cell.requirements)
