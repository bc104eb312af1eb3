"""Which table configures which file, and which files are left out."""

from __future__ import annotations

import re
import sys

import pytest

from gradguard_lint.rules import codes
from pytest_gradguard.pitfalls import expand
from pytest_gradguard.settings import nearest, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAMES = [("GG201", "a.py", 6), ("GG201", "sub/b.py", 6), ("GG201", "sub/deep/c.py", 6)]


@pytest.fixture
def tree(project, worker):
    """Three files with one finding each, in folders within folders."""
    for _, name, _ in NAMES:
        project.write(name, worker)
    return project


def table(text: str = "") -> str:
    return f"[tool.gradguard]\n{text}\n"


def test_the_nearest_table_configures_each_file(tree):
    tree.write("pyproject.toml", table('ignore = ["GG201"]'))
    tree.write("sub/pyproject.toml", table())
    assert tree.codes() == NAMES[1:]
    assert tree.codes("sub/deep/c.py", "a.py") == NAMES[2:]
    tree.write("sub/deep/pyproject.toml", table('min-severity = "error"'))
    assert tree.codes() == NAMES[1:2]


def test_a_file_without_the_table_hides_nothing(tree):
    tree.write("pyproject.toml", table('ignore = ["GG201"]'))
    tree.write("sub/pyproject.toml", "[project]\nname = 'x'\n[tool.other]\n")
    assert tree.codes() == []


def test_the_table_is_found_from_the_file_not_from_the_current_folder(tree, tmp_path_factory):
    tree.write("pyproject.toml", table('ignore = ["GG201"]'))
    other = type(tree)(tmp_path_factory.mktemp("elsewhere"))
    assert other.codes(str(tree.root)) == []
    source = (tree.root / "a.py").read_text()
    name = str(tree.root / "new.py")
    assert other.lint("-", "--stdin-filename", name, stdin=source).status == 0
    assert other.lint("-", stdin=source).status == 1


def test_patterns_are_relative_to_the_folder_of_their_table(tree):
    tree.write(
        "sub/pyproject.toml",
        table('exclude = ["/b.py"]\n[tool.gradguard.per-file-ignores]\n"deep/*" = ["GG2"]'),
    )
    assert tree.codes() == NAMES[:1]


def test_a_table_hides_no_exclusion_around_its_folder(tree):
    tree.write("pyproject.toml", table('exclude = ["sub"]'))
    tree.write("sub/pyproject.toml", table())
    assert tree.codes() == NAMES[:1]


def test_a_named_configuration_beats_all(tree):
    tree.write("pyproject.toml", table('ignore = ["GG201"]'))
    tree.write("conf/other.toml", table())
    assert tree.codes("--config", "conf/other.toml") == NAMES


def test_delayed_and_parallel_are_those_of_the_file_that_starts_the_workers(project):
    source = (
        "import torch\nfrom tools import later, spread\n\n\n"
        "def work(k):\n    return torch.ones(3).cuda().sum().item() * k\n\n\n"
        "print(spread(n_jobs=4)(later(work)(k) for k in range(3)))\n"
    )
    project.write("one/a.py", source)
    project.write("two/a.py", source)
    names = 'delayed = ["tools.later"]\nparallel = ["tools.spread"]'
    project.write("two/pyproject.toml", table(names))
    assert project.codes() == [("GG201", "two/a.py", 6)]


@pytest.mark.parametrize(
    "text",
    [
        '[tool]\ngradguard = {ignore = ["GG201"]}\n',
        '[tool . gradguard]\nignore = ["GG201"]\n',
        '["tool"."gradguard"]\nignore = ["GG201"]\n',
        '[tool."grad\\u0067uard"]\n"ignore" = ["GG201"]\n',
        'tool.gradguard.ignore = ["gg201"]\n',
        'tool = {gradguard = {"ignore" = ["GG2"]}}\n',
    ],
)
def test_the_table_is_read_however_it_is_written(tree, text):
    tree.write("pyproject.toml", text)
    assert tree.codes() == []


@pytest.mark.parametrize(
    "text",
    [
        "[tool]\ngradguard = 3\n",
        "[tool]\ngradguard = ['GG201']\n",
        "[[tool.gradguard]]\nignore = []\n",
        "tool = 'gradguard'\n",
        "[tool.gradguard]\nignore = 'GG201'\n",
        "[tool.gradguard]\nselect = [201]\n",
        "[tool.gradguard]\nexclude = 'build'\n",
        "[tool.gradguard]\nmin-severity = ['info']\n",
        "[tool.gradguard]\nper-file-ignores = ['x.py']\n",
        "[tool.gradguard.per-file-ignores]\n'x.py' = 'GG201'\n",
        "[tool.gradguard]\ncolour = 'blue'\n",
        "[tool.gradguard]\nselect = ['GG104']\n",
        "[tool.gradguard]\nselect = []\n",
        "[tool.gradguard\n",
        "[tool.gradguard]\nx = " + "[" * 3000 + "\n",
    ],
)
def test_what_is_not_understood_is_one_line(tree, text):
    tree.write("pyproject.toml", text)
    ran = tree.lint()
    (line,) = ran.err.splitlines()
    assert ran.status == 2
    assert "pyproject.toml" in line
    assert len(line) < 400


def test_the_files_of_other_tables_are_checked_where_one_is_broken(tree):
    tree.write("sub/pyproject.toml", "[tool.gradguard]\nselct = []\n")
    ran = tree.lint(json_output=True)
    assert (ran.status, ran.codes) == (2, NAMES[:1])
    assert len(ran.err.splitlines()) == 1
    assert "sub/pyproject.toml: unknown key 'selct'" in ran.err
    assert [error["path"] for error in ran.json["errors"]] == ["sub/pyproject.toml"]


@pytest.mark.parametrize("text", ["[project]\nname = 'x'\n", "[tool.other]\n"])
def test_a_named_file_without_the_table_is_refused(tree, text):
    tree.write("conf/pyproject.toml", text)
    ran = tree.lint("--config", "conf/pyproject.toml")
    assert (ran.status, ran.out) == (2, "")
    assert "conf/pyproject.toml: has no table [tool.gradguard]" in ran.err


# -- files that are left out -----------------------------------------------------------------------

RUN = """\
from joblib import Parallel, delayed

from jobs import work

print(Parallel(n_jobs=2)(delayed(work)(k) for k in range(3)))
"""


def test_exclude_holds_for_files_reached_from_others(project):
    project.write("run.py", RUN)
    project.write("jobs.py", "import torch\n\n\ndef work(k):\n    return torch.ones(3).cuda()[k]\n")
    assert project.codes("run.py") == [("GG201", "jobs.py", 5)]
    project.write("pyproject.toml", table('exclude = ["jobs.py"]'))
    assert project.codes() == []
    assert project.codes("run.py") == []
    assert project.codes("run.py", "jobs.py") == [("GG201", "jobs.py", 5)]  # it is named
    assert project.codes("--force-exclude", "run.py", "jobs.py") == []


@pytest.mark.parametrize("exclude", ["sub", "sub/", "/sub", "sub/**", "*/b.py\nc.py", "**/*.py"])
def test_force_exclude_holds_for_named_files_and_folders(tree, exclude):
    patterns = ", ".join(f'"{pattern}"' for pattern in exclude.split("\n"))
    tree.write("pyproject.toml", table(f"exclude = [{patterns}]"))
    assert tree.codes("sub/b.py", "sub/deep/c.py") == NAMES[1:]
    ran = tree.lint("--force-exclude", "sub/b.py", "sub/deep/c.py")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "0 files checked, 2 excluded: no findings\n"
    assert tree.codes("--force-exclude", "sub") == []


def test_force_exclude_holds_for_standard_input(tree, worker):
    tree.write("pyproject.toml", table('exclude = ["gen"]'))
    arguments = ("-", "--stdin-filename", "gen/new.py")
    assert tree.lint(*arguments, stdin=worker).status == 1
    assert tree.lint("--force-exclude", *arguments, stdin=worker).status == 0


def test_force_exclude_holds_for_folders_that_are_never_walked(project, worker):
    project.write("node_modules/a.py", worker)
    assert project.lint("node_modules/a.py").status == 1
    assert project.lint("--force-exclude", "node_modules/a.py").status == 0


def test_a_folder_that_is_named_is_walked_though_it_is_excluded(tree):
    tree.write("pyproject.toml", table('exclude = ["sub", "c.py"]'))
    assert tree.codes() == NAMES[:1]
    assert tree.codes("sub") == NAMES[1:2]


def test_exclude_on_the_command_line_comes_in_addition(tree):
    tree.write("pyproject.toml", table('exclude = ["a.py"]'))
    assert tree.codes("--exclude", "b.py,x.py", "--exclude", "y.py") == NAMES[2:]


def test_pytest_and_gradguard_run_look_past_a_file_without_the_table(tree):
    """They ask the same question of the folder in which they run."""
    tree.write("pyproject.toml", table('ignore = ["GG2"]'))
    tree.write("sub/pyproject.toml", "[project]\nname = 'x'\n")
    settings = nearest(str(tree.root / "sub" / "deep"))
    assert (settings.ignore, settings.root) == (("GG2",), str(tree.root))


TABLE = """\
[project]
requires-python = ">=3.10"

[tool.gradguard]
ignore = ["GG2"]
exclude = ["made*"]
per-file-ignores = { "a/*" = ["GG101", "grad-mode-not-propagated"] }

[[tool.gradguard.models]]
name = "mylib.Pool"
does = "pool"
"""


def test_the_files_that_would_be_checked_are_listed(project):
    project.write("pyproject.toml", TABLE)
    for name in ("a/x.py", "b.py", "made.py", "c.txt"):
        project.write(name, "x = (")
    ran = project.lint("--show-files")
    assert (ran.status, ran.out, ran.err) == (0, "a/x.py\nb.py\n", "")
    ran = project.lint("--show-files", "a", "none.py")
    assert (ran.status, ran.out) == (2, "a/x.py\n")
    assert ran.err == "none.py: error: no such file or folder\n"


def test_the_settings_that_hold_can_be_read_back_as_a_table(project):
    project.write("pyproject.toml", TABLE)
    project.write("a/x.py", "x = 1")
    project.write("sub/pyproject.toml", "[tool.gradguard]\nmin-severity = 'info'\n")
    project.write("sub/b.py", "x = 1")
    ran = project.lint("--show-settings", "--start-method", "spawn")
    assert (ran.status, ran.err) == (0, "")
    first, second = re.split("^(?=#)", ran.out, flags=re.M)[1:]
    assert first.startswith("# pyproject.toml: 1 file\n")
    assert second.startswith('# sub/pyproject.toml: 1 file\nselect = ["GG"]\n')
    assert 'min-severity = "info"\n' in second
    said = parse(tomllib.loads(first), "pyproject.toml")
    table = parse(tomllib.loads(TABLE)["tool"]["gradguard"], "pyproject.toml")
    assert expand(said.select) == set(codes()) - expand(["GG2"])
    assert (said.min_severity, said.start_method) == ("warning", "spawn")
    assert said.target_version == (3, 10)
    for name in ("exclude", "per_file_ignores", "models"):
        assert getattr(said, name) == getattr(table, name)


@pytest.mark.parametrize(
    ("options", "other"),
    [
        (["--show-files", "--fix"], "--fix"),
        (["--show-settings", "--statistics"], "--statistics"),
        (["--show-files", "--show-settings"], "--show-settings"),
    ],
)
def test_what_checks_nothing_takes_no_options_about_findings(project, options, other):
    ran = project.lint(*options)
    said = f"checks nothing, and cannot be given together with {other}"
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == f"gradguard lint: error: {options[0]} {said}\n"
