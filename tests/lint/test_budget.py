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
