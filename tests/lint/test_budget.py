"""What is left undone when a program takes more steps than the engine allows."""

from __future__ import annotations

from textwrap import indent

import pytest

LONG = "    x = [x + 1, x + 2, x + 3][0]\n" * 1500

PROGRAM = f"""\
import torch
from multiprocessing import Pool


def prepare(x):
{LONG}    return x


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k


{{}}

if __name__ == "__main__":
    prepare(prepare(1))
    {{}}
"""

POOL = """\
with Pool(2) as pool:
        print(pool.map(work, range(4)))"""


def codes(project, functions: str, ends: str) -> list[str]:
    project.write("program.py", PROGRAM.format(functions, ends))
    return [finding["code"] for finding in project.lint(json_output=True).json["findings"]]


def test_the_tasks_of_a_long_program_are_followed(project):
    assert codes(project, "", POOL) == ["GG201"]


RUN = """\
def draw(rng, k, noisy):
    return rng.normal() if noisy else k"""

TASKS = """\
import sys
    import numpy as np

    rng, tasks = np.random.default_rng(0), []
    for k in range(len(sys.argv)):
        tasks.append((rng, k, {}))
    with Pool(2) as pool:
        print(pool.starmap(draw, tasks))"""


def test_the_short_loops_of_a_long_program_come_to_an_end(project):
    assert codes(project, RUN, TASKS.format(True)) == ["GG305"]
    assert codes(project, RUN, TASKS.format(False)) == []


SWITCH = """\
import argparse
    import numpy as np

    parser = argparse.ArgumentParser()
    parser.add_argument("--many", action="store_true")
    if parser.parse_args().many:
        main()
    prepare(prepare(1))
    {}()"""


@pytest.mark.parametrize(
    ("last", "told"), [("print", ", where `many` is set, which is off by default"), ("main", "")]
)
def test_a_switch_is_not_named_where_calls_of_a_function_are_not_followed(project, last, told):
    functions = f"def draw(k):\n    return np.random.rand()\n\n\ndef main():\n    {POOL}\n"
    source = PROGRAM.format(functions.replace("work", "draw"), SWITCH.format(last))
    project.write("program.py", source.replace("prepare(prepare(1))", "", 1))
    (found,) = project.lint("--select", "GG304", json_output=True).json["findings"]
    assert found["trace"][0]["message"] == f"`draw` runs in forked workers{told}"


RESUMED = f"""\
def resume():
    print(work(1))
    {POOL}"""

STARTED = """\
import multiprocessing
    multiprocessing.set_start_method("spawn")
    while True:
        {}
        resume()"""


METHOD = "class Run:\n" + indent(RESUMED.replace("()", "(self)", 1), "    ")


@pytest.mark.parametrize(("functions", "call"), [(RESUMED, "resume"), (METHOD, "Run().resume")])
def test_what_a_long_program_calls_after_its_budget_is_no_certain_error(project, functions, call):
    start = STARTED.format("prepare(prepare(1))").replace("resume", call)
    assert "GG203" not in codes(project, functions, start)


def test_what_a_short_program_calls_is(project):
    project.write("program.py", PROGRAM.format(RESUMED, "resume()").replace(LONG, ""))
    found = project.lint(json_output=True).json["findings"]
    assert "GG203" in [finding["code"] for finding in found]


def test_a_function_that_a_long_program_calls_is_run_by_itself(project):
    assert codes(project, f"def main():\n    {POOL}\n", "main()") == ["GG201"]


@pytest.mark.parametrize(("models", "found"), [(1, 1), (2, 2), (30, 6)])
def test_so_many_ways_to_choose_the_models_of_one_loss_are_told_apart(project, models, found):
    chosen = "".join(
        f"model{k} = DDP(Linear(3, 1) if settings.first{k} else Linear(3, 1))\n"
        f"optimizer{k} = torch.optim.SGD(model{k}.parameters(), lr=0.1)\n"
        for k in range(models)
    )
    loss = " + ".join(f"\\\n        model{k}.module(x).sum()" for k in range(models))
    steps = "".join(f"    optimizer{k}.step()\n" for k in range(models))
    project.write(
        "program.py",
        f"""\
import settings
import torch
from torch.nn import Linear
from torch.nn.parallel import DistributedDataParallel as DDP

{chosen}
for x in settings.loader:
    loss = {loss}
    loss.backward()
{steps}
""",
    )
    findings = project.lint("--select", "GG502", json_output=True).json["findings"]
    assert len(findings) == found


# -- what is cut off is said -----------------------------------------------------------------------

CALLED = f"def main():\n    {POOL}\n"
MODULE = "reached the limit of 24,000 steps for a module's own code"
END = "not followed to their end: reached a limit of the analysis (listed by --output-format json)"


def cut(project, *options: str) -> list[tuple[str, int, str | None, str]]:
    report = project.lint(*options, json_output=True).json
    assert report["errors"] == []
    found = report["cut"]
    assert all([*one] == ["path", "line", "function", "reason"] for one in found)
    return [tuple(one.values()) for one in found]


def line_of(source: str, text: str) -> int:
    return source[: source.index(text)].count("\n") + 1


def long_program(functions: str, ends: str) -> str:
    return PROGRAM.format(functions, ends)


def test_a_function_that_is_not_followed_where_it_is_called_is_said(project):
    source = long_program(CALLED, "main()")
    project.write("src/program.py", source)
    assert cut(project) == [
        ("src/program.py", 1, None, MODULE),
        ("src/program.py", line_of(source, "def main"), "main", MODULE),
    ]
    ran = project.lint()
    assert ran.out.splitlines()[-1] == f"2 functions {END}"
    assert ran.err == ""
    assert f"2  cut    {MODULE}" in project.lint("--statistics").out.splitlines()
    concise = project.lint("--statistics", "--output-format", "concise").out.splitlines()
    assert concise[-1] == f"2 functions {END}"
    assert f"2  cut    {MODULE}" in concise


def test_nothing_is_said_of_a_program_that_is_followed_to_its_end(project):
    assert codes(project, "", POOL) == ["GG201"]
    assert cut(project) == []
    project.write("program.py", long_program(CALLED, "main()").replace(LONG, ""))
    assert cut(project) == []
    ran = project.lint("--statistics")
    assert "not followed" not in ran.out
    assert "cut" not in ran.out


AFTER = {
    "a generator": ("def items():\n    yield 1", "print([k for k in items()])", "items"),
    "a method": ("class Run:\n    def go(self):\n        work(1)", "Run().go()", "Run.go"),
    "a lambda": ("", "(lambda: work(1))()", "<lambda>"),
    "a loop": ("", "for k in range(9):\n        x = x, [k] * 99 + [k, k, k]" + ", k" * 90, None),
    "an iterator": ("", "for y in (k for k in [1, 2]):\n        print(y)", None),
}


@pytest.mark.parametrize("kind", AFTER)
def test_each_kind_of_code_that_is_not_followed_is_said(project, kind):
    functions, call, function = AFTER[kind]
    project.write("program.py", long_program(functions, f"x = None\n    {call}\n    {POOL}"))
    assert [(name, why) for _, _, name, why in cut(project)] == [
        (name, MODULE) for name in dict.fromkeys((None, function))
    ]
    project.write(
        "program.py", long_program(functions, f"x = None\n    {call}\n    {POOL}").replace(LONG, "")
    )
    assert cut(project) == []


def test_code_that_is_left_in_the_middle_is_said(project):
    source = "import torch\nfrom joblib import Parallel, delayed\n\n\ndef run(x):\n"
    source += LONG * 3 + "    return Parallel(2)(delayed(torch.exp)(k) for k in x)\n"
    project.write("program.py", source)
    assert cut(project) == [
        ("program.py", 5, "run", "reached the limit of 12,000 steps for one function")
    ]


PART = LONG[: len(LONG) * 3 // 5]


def test_all_roots_of_a_program_share_a_limit(project):
    project.write(
        "program.py",
        "import torch\nfrom joblib import Parallel, delayed\n\n\ndef last(k):\n    return k\n\n"
        + "".join(
            f"\ndef run_{k}(x):\n{PART}    last(x)\n"
            "    return Parallel(2)(delayed(torch.exp)(k) for k in x)\n\n"
            for k in range(9)
        ),
    )
    found = {why for _, _, _, why in cut(project)}
    assert "reached the limit of 80,000 steps for one program" in found


@pytest.mark.parametrize("call", ["last(1)", "helper(x)"])
def test_the_function_that_it_begins_with_is_said_wherever_the_limit_is_reached(project, call):
    project.write(
        "program.py",
        "import torch\nfrom joblib import Parallel, delayed\n\n\ndef last(k):\n    return k\n\n\n"
        f"def helper(x):\n    return last(x)\n\n\ndef run(x):\n{LONG}    {call}\n"
        "    return Parallel(2)(delayed(torch.exp)(k) for k in x)\n",
    )
    names = {"last(1)": ["last", "run"], "helper(x)": ["helper", "run"]}
    assert [name for _, _, name, _ in cut(project)] == names[call]


def nested(depth: int) -> str:
    functions = "".join(f"def call_{k}(x):\n    return call_{k + 1}(x)\n\n\n" for k in range(depth))
    return (
        f"import torch\nfrom multiprocessing import Pool\n\n\n{functions}"
        f"def call_{depth}(x):\n    {POOL.replace('work', 'abs')}\n    return x\n\n\n"
        'if __name__ == "__main__":\n    call_0(torch.ones(3))\n'
    )


def test_calls_that_nest_too_deeply_are_said(project):
    project.write("program.py", nested(13))
    assert cut(project) == []
    project.write("program.py", nested(20))
    assert cut(project) == [
        ("program.py", 5 + 4 * k, f"call_{k}", "reached the limit of 14 nested calls")
        for k in (13, 14)
    ]


def test_recursion_is_not_said(project):
    source = long_program(
        "def go(k):\n    return go(k - 1) if k else work(k)", f"go(9)\n    {POOL}"
    )
    project.write("program.py", source.replace(LONG, ""))
    assert cut(project) == []


SHARED = f"""\
import torch
from multiprocessing import Pool


def prepare(x):
{LONG}    return x


def last(x):
    with Pool(2) as pool:
        return pool.map(torch.exp, x)
"""

USES = """\
import torch
from pkg.shared import last, prepare


def here(x):
    return last(x)


if __name__ == "__main__":
    prepare(prepare(1))
    here([torch.ones(3)])
    last([torch.ones(3)])
"""


@pytest.fixture
def shared(project):
    """Three programs that use the same functions of another module."""
    project.write("pkg/__init__.py", "")
    project.write("pkg/shared.py", SHARED)
    for name in ("c.py", "a.py", "b.py"):
        project.write(name, USES)
    return project


ALL_CUT = [
    *(
        (name, line, function, MODULE)
        for name in ("a.py", "b.py", "c.py")
        for line, function in ((1, None), (5, "here"))
    ),
    ("pkg/shared.py", line_of(SHARED, "def last"), "last", MODULE),
]


@pytest.mark.parametrize(
    "options", [["--jobs", "2"], ["--no-cache"], ["--no-cache", "--jobs", "2"]]
)
def test_each_function_is_said_once_in_order(shared, options):
    assert cut(shared, *options) == ALL_CUT
    assert cut(shared, *options) == ALL_CUT
    assert shared.lint(*options).out.splitlines()[-1].startswith("7 functions not followed")


def test_what_is_not_checked_is_not_said(shared):
    assert cut(shared, "--exclude", "pkg") == ALL_CUT[:-1]
    shared.write("pkg/shared.py", SHARED + "# gradguard: skip-file\n")
    assert cut(shared) == ALL_CUT[:-1]
    assert cut(shared, "a.py") == ALL_CUT[:2]
