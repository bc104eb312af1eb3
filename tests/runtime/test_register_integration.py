"""Another package teaches the guard its own workers, by the public names alone."""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from children import run_python

from pytest_gradguard import register_integration
from pytest_gradguard.integrations import Integration, Patch, Workers
from pytest_gradguard.runtime.kernel import registry

PROGRAM = Path(__file__).parent / "home_made" / "program.py"


@pytest.mark.parametrize("order", ["registered-first", "imported-first"])
def test_a_home_made_pool_is_watched_as_any_other(order: str) -> None:
    done = run_python(PROGRAM, order, forked="torch")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout) == [
        ["GG101", "give", "home-made"],
        ["GG101", "over", "home-made"],
        ["GG102", "give", "home-made"],
        ["GG103", "backward", "home-made"],
        ["GG301", "threads", "threading"],
    ]


WRONG: dict[str, tuple[Any, str]] = {
    "no integration": (
        lambda: register_integration("joblib"),
        "takes an Integration, not 'joblib'",
    ),  # type: ignore[arg-type]
    "one of ours": (
        lambda: register_integration(Integration(name="joblib")),
        "gradguard already has an integration named 'joblib': choose another name",
    ),
    "no name": (lambda: Integration(name=" "), "must not be empty"),
    "packages as one string": (
        lambda: Integration(name="mine", packages="mine"),
        "packages of integration 'mine' must be a list of names, not 'mine'",
    ),
    "patches that are no functions": (
        lambda: Integration(name="mine", patches={"mine": []}),  # type: ignore[dict-item]
        "patches of integration 'mine' must map the name of a module to a function",
    ),
    "no way to travel": (
        lambda: Workers("mine", "post"),  # type: ignore[arg-type]
        "carries must be one of 'pickle', 'thread', 'copy', not 'post'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_in_one_line(what: str) -> None:
    make, message = WRONG[what]
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


UNWATCHED = (
    "gradguard does not watch joblib's backend 'unwrapping' (__main__.Unwrapping): it neither "
    "pickles the batches that joblib gives it nor calls them in this process"
)


def test_backends_of_joblibs_that_somebody_else_has_registered() -> None:
    """They are watched by what they do with batches; one that does nothing known is named, once."""
    done = run_python(PROGRAM.with_name("backends_program.py"), forked="torch")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: [one["findings"] for one in found[name]] for name in found} == {
        "pickling": [
            [
                ["GG101", "2", "pickling"],
                ["GG102", "2", "pickling"],
                ["GG103", "3", "pickling"],
                ["GG301", "1", "pickling"],
            ]
        ],
        "inthreads": [[["GG301", "1", "inthreads"]]],
        "inline": [[]],
        "unwrapping": [[], []],
    }
    assert {name: [one["warnings"] for one in found[name]] for name in found} == {
        "pickling": [[]],
        "inthreads": [[]],
        "inline": [[]],
        "unwrapping": [[UNWATCHED], []],
    }


def test_an_unknown_layout_closes_its_own_part_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pool:
        def give(self) -> None:
            """What the integration knows."""

    module = ModuleType("poolish")
    module.__version__ = "9.9"  # type: ignore[attr-defined]
    module.Pool = Pool  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "poolish", module)
    before = Pool.give
    integration = Integration(
        name="poolish",
        patches={
            "poolish": lambda module: [
                Patch(module.Pool, "give", lambda original: lambda self: None),
                Patch(module.Pool, "take", lambda original: original),
            ]
        },
    )
    watched = registry.Watched(integration, "poolish")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched.apply()
        watched.apply()
    assert [str(one.message) for one in caught] == [
        f"poolish 9.9 is not known to gradguard ({Pool!r} has no 'take' of its own); what it gives "
        "to workers is not watched"
    ]
    assert not watched.applied
    assert Pool.give is before


DOCS = Path(__file__).parents[2] / "docs" / "integrations.md"


@pytest.mark.parametrize(
    "module", ["pytest_gradguard.runtime.integrations.multiprocess", "registered"]
)
def test_the_documentation_shows_what_stands(module: str) -> None:
    """Both examples are the files themselves."""
    if module == "registered":
        text = PROGRAM.with_name("registered.py").read_text()
        shown = text[text.index("from types") : text.index("\n\ndef register()")]
    else:
        shown = Path(inspect.getfile(import_module(module))).read_text()
    assert shown.strip() in DOCS.read_text()
