"""Whatever a call of a known name is given, it can be read."""

from __future__ import annotations

import pytest

from gradguard_lint.analysis import analyse
from gradguard_lint.domain.options import Options
from gradguard_lint.engine.expressions import BUILTINS
from gradguard_lint.models.rows import libraries
from gradguard_lint.project.reader import Reader
from gradguard_lint.rules import codes

PROGRAM = """\
import json
import sys

import joblib
{top}

given = json.load(open("given"))
keywords = dict(json.load(open("keywords")))
{made}
if given == 1:
    {call}()
elif given == 2:
    {call}(*given)
elif given == 3:
    {call}(**keywords)
elif given == 4:
    {call}(joblib.dump, *given)
elif given == 5:
    {call}(joblib.dump, given, [1, 2], {{}}, None, 6, 7, 8, 9, 10, 11, 12)
joblib.Parallel(2)(joblib.delayed(joblib.dump)(n) for n in range(3))
"""

CONTAINERS = {"[1, 2]": list, "{'a': 1}": dict, "{1}": set, "'a{}'": str, "3": int}


def calls(library):
    """What makes the object of which something is called, if one is, and what is called."""
    for row in library.rows:
        for name in row.names.split():
            for each in (name,) if name[-1] != "*" else (name[:-1] + "some", name[:-1] + "Some"):
                yield "", each
                yield from ((f"made = {each}(2)", f"made.{method}") for method in row.methods)


def read(made, call):
    top = call.partition(".")[0] if not made else made.split()[-1].partition(".")[0]
    importing = f"import {top}" if "." in call and top.isidentifier() else ""
    text = PROGRAM.format(top=importing, made=made, call=call.removeprefix("builtins."))
    try:
        analyse("program.py", text.encode(), codes(), Options(loops=True), Reader(), whole=True)
    except Exception as error:
        pytest.fail(f"{made} {call}: {error!r}")


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.tops[0])
def test_of_what_a_library_has(library):
    for made, call in calls(library):
        read(made, call)


def test_of_built_in_functions_and_their_methods():
    for name in BUILTINS:
        read("", name)
    for made, kind in CONTAINERS.items():
        for method in dir(kind):
            read(f"made = {made}", f"made.{method}")
