"""Comments that silence findings."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("# noqa", True),
        ("# NOQA", True),
        ("#noqa:GG201", True),
        ("# noqa: GG201", True),
        ("# noqa: E501, GG201", True),
        ("# noqa: E501 GG201", True),
        ("# noqa: E501", False),
        ("# noqa: GG202", False),
        ("# no quality assurance", False),
    ],
)
def test_noqa_on_the_line(project, worker, comment, silent):
    project.write("train.py", worker.replace("* k\n", f"* k  {comment}\n"))
    assert project.lint().status == int(not silent)


def test_noqa_on_the_first_line_of_the_statement(project):
    source = (
        "import torch\nfrom joblib import Parallel, delayed\n\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "y = Parallel(n_jobs=2)(  # noqa: GG101\n"
        "    delayed(torch.Tensor.numel)(x) for _ in range(3)\n"
        ")\n"
    )
    project.write("a.py", source)
    assert project.lint().status == 0
    project.write("a.py", source.replace("  # noqa: GG101", ""))
    assert project.codes() == [("GG101", "a.py", 6)]


def test_skip_file(project, worker):
    for end in ("\n", "\r\n", "\r"):
        text = "import os\n# gradguard: skip-file\n" + worker
        project.write("train.py", text.replace("\n", end).encode())
        assert project.lint().status == 0
    project.write("train.py", '"""\n# gradguard: skip-file\n"""\n' + worker)
    assert project.lint().status == 1


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("# gradguard: ignore[GG201]", True),
        ("# gradguard: ignore[GG201] one worker has the GPU to itself", True),
        ("#gradguard:ignore[gg201]", True),
        ("# gradguard: ignore[GG101, GG2]", True),
        ("# type: ignore[union-attr]  # gradguard: ignore[GG201]", True),
        ("# gradguard: ignore", True),
        ("# gradguard: ignore  one worker has it to itself", True),
        ("# gradguard: ignore[GG202]", False),
        ("# gradguard: ignore-next-line", False),
        ("# gradguard: this is slow", False),
    ],
)
def test_ignore_on_the_line(project, worker, comment, silent):
    project.write("train.py", worker.replace("* k\n", f"* k  {comment}\n"))
    ran = project.lint()
    assert (ran.status, ran.err) == (int(not silent), "")


def test_ignore_on_the_first_line_of_the_statement(project, worker):
    source = worker.replace("return torch.ones(3", "return torch.ones(  # WHY\n        3")
    project.write("train.py", source)
    assert project.codes() == [("GG201", "train.py", 6)]
    project.write("train.py", source.replace("WHY", "gradguard: ignore[GG201] why"))
    assert project.codes() == []


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("# gradguard: ignore[GG999]", "there is no code 'GG999'"),
        ("# gradguard: ignore[GG202, F401]", "there is no code 'F401'"),
        ("# gradguard: ignore[]", "names no code"),
        ("# gradguard: ignore[GG201 because", "names no code"),
        ("# gradguard: ignroe[GG201]", "did you mean 'ignore'?"),
        ("# gradguard: ignored", "did you mean 'ignore'?"),
        ("# gradguard: skipfile", "did you mean 'skip-file'?"),
        ("# gradguard: skip_file", "did you mean 'skip-file'?"),
    ],
)
def test_a_comment_that_silences_nothing_is_said(project, worker, comment, said):
    project.write("train.py", worker.replace("* k\n", f"* k  {comment}\n"))
    ran = project.lint(json_output=True)
    assert (ran.status, ran.codes) == (1, [("GG201", "train.py", 6)])
    (line,) = ran.err.splitlines()
    assert line.startswith("train.py:6: warning: `# gradguard: ")
    assert said in line


@pytest.mark.parametrize(
    "text", ['"# noqa"', '"""\n# gradguard: ignore[GG201]"""', "f'{k}# noqa: GG201'"]
)
def test_a_string_silences_nothing(project, worker, text):
    project.write("train.py", worker.replace("* k\n", f"* k, {text}\n"))
    assert project.codes() == [("GG201", "train.py", 6)]
    project.write("train.py", worker.replace("* k\n", f"* k, {text}  # noqa: GG201\n"))
    assert project.codes() == []


def test_an_ignore_in_a_string_is_nobodys_mistake(project):
    project.write("docs.py", 'TEXT = """\n# gradguard: ignore[XY1]\n"""\n')
    assert project.lint().err == ""


EITHER = """\
import torch
from joblib import Parallel, delayed
from fast import small


def large(x):
    return torch.tensor(x, device="cuda").prod().item()


def either(k, x):
    return small(x) if k % 2 else large(x)


Parallel(n_jobs=2)(delayed(either)(k, [1.0]) for k in range(4))
"""

SMALL = """\
import torch


def small(x):
    t = torch.tensor(x, device="cuda")
    return torch.ones(3, device="cuda").sum().item() + t.sum().item()
"""


def test_what_is_on_another_branch_of_a_place_that_is_silenced(project):
    """It is named with that place where nothing silences it; a use that comes after it is not."""
    first, second = ("GG201", "fast.py", 5), ("GG201", "run.py", 7)
    run = project.write("run.py", EITHER)
    fast = project.write("fast.py", SMALL)
    assert project.codes() == [first]
    settings = project.write("pyproject.toml", "[tool.gradguard]\nexclude = ['fast.py']\n")
    assert project.codes() == project.codes() == [second]  # from the cache, too
    settings.write_text("[tool.gradguard.per-file-ignores]\n'fast.py' = ['GG201']\n")
    assert project.codes() == project.codes() == [second]
    assert project.codes("--select", "GG202") == []
    settings.unlink()
    fast.write_text(SMALL.replace('"cuda")\n    return', '"cuda")  # noqa: GG201\n    return'))
    assert project.codes() == [second]
    run.write_text(EITHER.replace(".item()\n", ".item()  # gradguard: ignore[GG201]\n"))
    assert project.codes() == []
    fast.write_text(SMALL)
    assert project.codes() == [first]
    run.write_text(EITHER)
    assert project.lint("--add-noqa").status == 0
    assert [path.read_text().count("# noqa: GG201") for path in (fast, run)] == [1, 1]
    fast.write_text("# gradguard: skip-file\n" + SMALL)
    run.write_text(EITHER)
    assert project.codes() == [second]


def test_a_place_that_another_task_leads_to_is_one_finding(project):
    project.write("fast.py", SMALL.replace('"cuda")\n', '"cuda")  # noqa\n'))
    project.write("run.py", EITHER + "Parallel(n_jobs=2)(delayed(large)(x) for x in [[1.0]])\n")
    (finding,) = project.lint(json_output=True).json["findings"]
    assert (finding["location"]["path"], finding["location"]["line"]) == ("run.py", 7)
    places = {step["line"] for step in finding["trace"]}
    assert {14, 15} <= places


UNUSED = """\
import torch
from joblib import Parallel, delayed

x = torch.ones(3, requires_grad=True)
y = Parallel(n_jobs=2)(  # noqa: GG101
    delayed(torch.Tensor.numel)(x) for _ in range(3)
)
"""


def unused(project, *more):
    """The places of GG901, and what is said there."""
    wanted = ("--select", "GG901", "--min-severity", "info")
    found = project.lint(*wanted, *more, json_output=True).json["findings"]
    return {(one["location"]["path"], one["location"]["line"]): one["message"] for one in found}


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("z = 1  # noqa: GG101", "z = 1"),
        ("z = 1  # noqa: E501, GG101, GG103  # why", "z = 1  # noqa: E501  # why"),
        ("z = 1  # NOQA:GG101 one worker only", "z = 1"),
        ("z = 1  # noqa: GG101 one worker only  # why", "z = 1  # why"),
        ("z = 1  # type: ignore  # noqa: GG101", "z = 1  # type: ignore"),
        ("z = 1  # gradguard: ignore[GG2,grad-tensor-to-worker] why", "z = 1"),
        ("z = 1  # gradguard: ignore[GG104] only the guard finds it", "z = 1"),
        ("z = 1  # gradguard: ignore", "z = 1"),
        ("é = 'é'  # noqa: GG101", "é = 'é'"),
        ("# gradguard: ignore[GG101]", None),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_what_silences_nothing_is_found_and_removed(project, line, left, end):
    source = UNUSED + line + end
    project.write("a.py", source.encode())
    assert set(unused(project)) == {("a.py", 8)}
    project.lint("--min-severity", "info", "--fix")
    after = UNUSED if left is None else UNUSED + left + end
    assert (project.root / "a.py").read_bytes().decode() == after
    assert unused(project) == {}


@pytest.mark.parametrize(
    "line",
    [
        "z = 1  # noqa",
        "z = 1  # noqa: E501, GG999",
        "z = 1  # noqa: GG101, GG901",
        "z = 1  # gradguard: ignore[GG1, unused-suppression]",
        "z = '# noqa: GG101'",
        "# gradguard: skip-file  # noqa: GG101",
    ],
)
def test_what_is_left_alone(project, line):
    project.write("a.py", UNUSED + line + "\n")
    assert unused(project) == {}


def test_what_is_said_of_it(project):
    project.write("a.py", "z = 1  # noqa: GG101, GG103\ny = 1  # gradguard: ignore\n")
    assert list(unused(project).values()) == [
        "This comment silences `GG101` and `GG103`, which are not found here.",
        "`# gradguard: ignore` silences nothing: no finding is here.",
    ]
    found = project.lint("--min-severity", "info", json_output=True).json["findings"]
    spans = [(it["location"]["column"], it["location"]["end_column"]) for it in found]
    assert spans == [(8, 28), (8, 27)]
    assert project.lint("--add-noqa", "--min-severity", "info").err == ""


def test_what_a_program_of_another_file_needs(project):
    project.write("tools.py", "def count(x):\n    return x.numel()  # noqa: GG201\n")
    calling = UNUSED.replace("torch.Tensor.numel", "tools.count").replace(
        "import torch\n", "import tools\nimport torch\n"
    )
    project.write("a.py", calling)
    assert set(unused(project)) == {("tools.py", 2)}
    project.write("tools.py", "def count(x):\n    return x.cuda().numel()  # noqa: GG201\n")
    for _ in range(2):  # the second time from the cache
        assert unused(project) == {}
    project.write("pyproject.toml", "")
    assert unused(project, "tools.py") == {}


def test_a_file_that_was_not_followed_to_its_end(project):
    steps = "x = [x + 1, x + 2, x + 3][0]\n" * 3000
    calls = "def run():\n    return [k for k in range(3)]\n\n\nrun()\n"
    source = UNUSED + steps + calls + "z = 1  # noqa: GG101\n"
    project.write("a.py", source)
    assert project.lint(json_output=True).json["cut"]
    assert unused(project) == {}
    project.write("a.py", source.replace(steps, ""))
    assert len(unused(project)) == 1


def test_loops_are_only_known_where_they_are_looked_for(project, monkeypatch):
    monkeypatch.setattr("gradguard_lint.run.LOOPS_AT_NO_COST", 0)
    loop = "import torch\n\nfor x in torch.ones(9, 2):\n    x.sum().backward()  # noqa: GG404\n"
    project.write("a.py", loop)
    shown = project.lint("--select", "GG9", "--min-severity", "warning", json_output=True)
    assert "hidden" not in shown.err
    assert set(unused(project)) == {("a.py", 4)}
