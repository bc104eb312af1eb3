"""``gradguard lint``: options, output, exit statuses, suppression, configuration."""

from __future__ import annotations

import json
import re
import subprocess

import pytest


def test_a_finding_gives_status_1_and_names_the_place_the_chain_and_the_way_out(project, worker):
    project.write("train.py", worker)
    ran = project.lint()
    assert ran.status == 1
    assert "warning[GG201] cuda-init-in-worker" in ran.out
    assert "--> train.py:6:12 in work" in ran.out
    assert 'return torch.ones(3, device="cuda").sum().item() * k' in ran.out
    assert "train.py:9: `work` runs in loky workers" in ran.out
    assert "= fix: " in ran.out
    assert "\x1b" not in ran.out
    assert ran.err == ""


_CASES = """\
import multiprocessing

import cupy
import torch
from joblib import Parallel, delayed


def use(*given):
    torch.ones(2000, 2000) @ torch.ones(2000, 2000)


def draw(generator):
    return torch.randn(1, generator=generator)


if __name__ == "__main__":
    Parallel(n_jobs=2)(delayed(use)(torch.nn.Linear(2, 2).cuda()) for _ in range(2))
    Parallel(n_jobs=2)(delayed(use)(cupy.ones(3)) for _ in range(2))
    generator = torch.Generator()
    Parallel(n_jobs=2)(delayed(draw)(generator) for _ in range(2))
    torch.ones(2000, 2000) @ torch.ones(2000, 2000)
    with multiprocessing.Pool(2) as pool:
        pool.map(use, range(3))
    Parallel(n_jobs=2, backend="multiprocessing")(delayed(use)(k) for k in range(2))
    tensors = [torch.ones(3, requires_grad=True)] * 19
    Parallel(n_jobs=2)(delayed(use)(*tensors) for _ in range(2))
"""


def test_the_way_out_fits_what_the_finding_is_about(project):
    """A module is not told to send `tensor.cpu()`, and a pool knows no loky backend."""
    project.write("train.py", _CASES)
    ran = project.lint(json_output=True)
    ways = [(one["code"], one["location"]["line"], one["fix"]) for one in ran.json["findings"]]
    expected = [
        ("GG202", 17, "deepcopy"),
        ("GG202", 18, "cupy.asnumpy"),
        ("GG305", 20, "torch.Generator()"),
        ("GG303", 23, 'get_context("spawn")'),
        ("GG303", 24, "loky"),
    ]
    for code, line, words in expected:
        (way,) = [way for known, at, way in ways if (known, at) == (code, line)]
        assert words in way, (code, line)
    assert ran.json["findings"][-1]["message"].startswith("`given[0]` requires grad")


def test_no_finding_gives_status_0_and_one_line(project):
    project.write("clean.py", "import torch\nfrom joblib import Parallel\nprint(1)\n")
    ran = project.lint()
    assert (ran.status, ran.out, ran.err) == (0, "1 file checked: no findings\n", "")


def test_json_has_the_shape_that_tools_read(project, worker):
    project.write("pkg/train.py", worker)
    ran = project.lint(json_output=True)
    report = ran.json
    assert report["schema"] == 1
    assert report["tool"]["name"] == "gradguard"
    assert report["summary"] == {"error": 0, "warning": 1, "info": 0}
    (finding,) = report["findings"]
    assert finding["location"] == {
        "path": "pkg/train.py", "line": 6, "column": 12, "end_line": 6, "end_column": 40,
        "function": "work",
    }  # fmt: skip
    assert finding["origin"] == "lint"
    assert finding["test"] is None
    assert finding["count"] == 1
    assert finding["trace"][0]["path"] == "pkg/train.py"


def test_columns_count_characters_not_bytes(project, worker):
    project.write("train.py", worker.replace("return torch", 'return "äöü" and torch'))
    (finding,) = project.lint(json_output=True).json["findings"]
    assert finding["location"]["column"] == len('    return "äöü" and ') + 1


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--select", "GG2"], True),
        (["--select", "GG101,GG3"], False),
        (["--select", "GG1", "--extend-select", "GG201"], True),
        (["--ignore", "GG201"], False),
        (["--ignore", "GG1,GG4"], True),
        (["--min-severity", "error"], False),
        (["--min-severity", "info"], True),
    ],
)
def test_selection(project, worker, args, found):
    project.write("train.py", worker)
    ran = project.lint(*args)
    assert ran.status == int(found)
    assert ("GG201" in ran.out) is found


def test_exit_zero_and_statistics(project, worker):
    project.write("one.py", worker)
    project.write("two.py", worker)
    ran = project.lint("--exit-zero", "--statistics")
    assert ran.status == 0
    assert "2  GG201  cuda-init-in-worker" in ran.out


def test_output_file(project, worker):
    project.write("train.py", worker)
    ran = project.lint("--output", "report.json", json_output=True)
    assert (ran.status, ran.out) == (1, "")
    assert json.loads((project.root / "report.json").read_text())["summary"]["warning"] == 1


def test_standard_input(project, worker):
    ran = project.lint("-", "--stdin-filename", "pkg/new.py", stdin=worker)
    assert ran.status == 1
    assert "--> pkg/new.py:6:12" in ran.out
    assert "device=" in ran.out.split("= ")[0]


@pytest.mark.parametrize(
    "args",
    [
        ["--fix=now"],
        ["--add-noqa", "--fix"],
        ["--add-noqa", "--diff"],
        ["--add-noqa", "-"],
        ["--add-noqa=two\nlines"],
        ["--target-version", "4"],
        ["--start-method", "soon"],
        ["book.ipynb"],
        ["-", "--stdin-filename", "book.ipynb"],
        ["--output-format", "yaml"],
        ["--select", "GG999"],
        ["--select", ","],
        ["--ignore", "F401"],
        ["--jobs", "0"],
        ["--jobs", "many"],
        ["--min-severity", "fatal"],
        ["--stdin-filename", "x.py"],
        ["-", "other.py"],
        ["--config", "missing.toml"],
        ["--unknown"],
    ],
)
def test_what_cannot_be_used_is_one_clear_line_and_status_2(project, worker, args):
    project.write("train.py", worker)
    ran = project.lint(*args)
    assert ran.status == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert "Traceback" not in ran.err


def test_settings(project, worker):
    project.write("train.py", worker)
    project.write("old/train.py", worker)
    project.write("gen/train.py", worker)
    project.write(
        "pyproject.toml",
        '[tool.gradguard]\nexclude = ["gen"]\nfail-on = "warning"\n'
        '[tool.gradguard.per-file-ignores]\n"old/*" = ["GG2"]\n',
    )
    assert project.codes() == [("GG201", "train.py", 6)]


def test_settings_are_overruled_by_the_command_line(project, worker):
    project.write("train.py", worker)
    project.write("pyproject.toml", '[tool.gradguard]\nselect = ["GG1"]\n')
    assert project.lint().status == 0
    assert project.lint("--select", "GG2").status == 1


def test_wrappers_of_your_own(project):
    project.write(
        "a.py",
        "import torch\nfrom tools import later, spread\n\n\n"
        "def work(k):\n    return torch.ones(3).cuda().sum().item() * k\n\n\n"
        "print(spread(n_jobs=4)(later(work)(k) for k in range(3)))\n",
    )
    assert project.lint().status == 0
    project.write(
        "pyproject.toml",
        '[tool.gradguard]\ndelayed = ["tools.later"]\nparallel = ["tools.spread"]\n',
    )
    assert project.codes() == [("GG201", "a.py", 6)]


# -- the end of a run, and options that cannot act -------------------------------------------------

INFO = """\
import torch

net = torch.nn.Linear(2, 1)
grads = []
for row in torch.ones(8, 2):
    net.zero_grad()
    net(row).sum().backward()
    grads.append(net.weight.grad.clone())
"""
"""A program with one finding of severity info."""


def last_line(ran):
    return ran.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            [],
            "2 files checked: 1 warning; hidden: 1 info finding (--min-severity info shows it)"
            "; see `gradguard explain GG201`",
        ),
        (
            ["--min-severity", "info"],
            "2 files checked: 1 warning, 1 info finding; see `gradguard explain GG201`",
        ),
        (
            ["--min-severity", "error"],
            "2 files checked: no findings; hidden: 1 warning, 1 info finding "
            "(--min-severity info shows them)",
        ),
        (
            ["--select", "gg3,Gg2", "--min-severity", "error"],
            "2 files checked: no findings; hidden: 1 warning (--min-severity warning shows it)",
        ),
        (
            ["--select", "GG404"],
            "2 files checked: no findings; hidden: 1 info finding (--min-severity info shows it)",
        ),
        (["--select", "gg101"], "2 files checked: no findings"),
        (
            ["train.py", "gone.py"],
            "1 file checked: 1 warning; 1 error (see stderr); see `gradguard explain GG201`",
        ),
    ],
)
def test_a_run_ends_with_what_was_checked_found_and_hidden(project, worker, arguments, line):
    project.write("train.py", worker)
    project.write("loop.py", INFO)
    assert last_line(project.lint(*arguments)) == line


def test_what_costs_too_much_to_look_for_unasked_is_said(project):
    project.write("loop.py", INFO + "# " + "x" * 70_000 + "\n")
    said = "info checks skipped in 1 file (--min-severity info enables them)"
    assert last_line(project.lint()) == f"1 file checked: no findings; {said}"
    for arguments in (["--min-severity", "info"], ["--select", "GG4"]):
        assert "1 info finding" in last_line(project.lint(*arguments))
    project.write("pyproject.toml", "[tool.gradguard]\nmin-severity = 'info'\n")
    assert project.codes() == [("GG404", "loop.py", 5)]


def test_json_holds_no_line_for_people(project, worker):
    project.write("train.py", worker)
    assert "checked" not in project.lint(json_output=True).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--select", "GG104"], "--select GG104 selects nothing"),
        (["--select", "GG201,gg107"], "--select gg107 selects nothing"),
        (["--extend-select", "GG110"], "--extend-select GG110 selects nothing"),
        (["--select", "GG1", "--ignore", "gg1"], "--ignore leaves out every code"),
        (["--ignore", "GG"], "--ignore leaves out every code"),
        (["--select", ","], "--select names no code"),
        (["--statistics", "--output-format", "json"], "--statistics has no effect"),
        (["--statistics", "--output-format", "sarif"], "(allowed: text, concise)"),
        (["--output-format", "xml"], "invalid choice: 'xml'"),
        (["--add-noqa", "--fix"], "--add-noqa cannot be given together with --fix"),
        (["--jobs", "0"], "must be 1 or more, not '0'"),
    ],
)
def test_an_option_that_cannot_act_says_so(project, worker, arguments, said):
    project.write("train.py", worker)
    ran = project.lint(*arguments)
    assert (ran.status, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert said in line


def test_help_offers_nothing_that_is_refused(project, worker):
    project.write("train.py", worker)
    text = project.lint("--help").out
    for option in sorted(set(re.findall(r"--[a-z-]+", text)) - {"--help"}):
        assert "not available" not in project.lint(option, "1").err, option
    for name in re.search(r"--output-format \{(.*?)\}", text)[1].split(","):
        assert project.lint("--output-format", name).status == 1


def test_python_m_gradguard_lint_is_the_same_command(project, worker):
    project.write("train.py", worker)
    out, _ = project.start("train.py", stdout=subprocess.PIPE).communicate(timeout=60)
    assert out.decode() == project.lint("train.py").out


def test_options_stand_before_between_and_after_paths(project, worker):
    for name in ("a.py", "b.py", "-c.py"):
        project.write(name, worker)
    for arguments in (
        ["--jobs", "2", "a.py", "b.py"],
        ["a.py", "--jobs", "2", "b.py"],
        ["a.py", "b.py", "--jobs=2"],
    ):
        assert [path for _, path, _ in project.codes(*arguments)] == ["a.py", "b.py"]
    assert [path for _, path, _ in project.codes("--jobs", "2", "--", "-c.py")] == ["-c.py"]
