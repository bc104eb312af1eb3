"""Files: which are found, which cannot be read, and that nothing breaks the run."""

from __future__ import annotations

import os
import subprocess

import pytest


def test_gitignore_and_standing_exclusions(project, worker):
    project.write(".git/HEAD", "")
    project.write(".gitignore", "build/\n*_gen.py\n!keep_gen.py\n")
    project.write("sub/.gitignore", "local.py\n")
    for name in (
        "build/a.py", "x_gen.py", "keep_gen.py", "sub/local.py", "sub/other.py", "sub/y_gen.py",
        ".venv/lib/a.py", "node_modules/a.py",
    ):  # fmt: skip
        project.write(name, worker)
    found = [path for _, path, _ in project.codes()]
    assert found == ["keep_gen.py", "sub/other.py"]
    assert project.codes("sub") == [("GG201", "sub/other.py", 6)]


def test_a_file_that_is_named_is_always_used(project, worker):
    project.write(".gitignore", "a.py\n")
    project.write("a.py", worker)
    assert project.codes("a.py") == [("GG201", "a.py", 6)]


def test_a_folder_that_is_named_is_walked_though_it_is_ignored(project, worker):
    project.write(".git/HEAD", "")
    project.write(".gitignore", "env/\n")
    project.write("env/lib/pkg/a.py", worker)
    project.write("env/lib/pkg/.gitignore", "b.py\n")
    project.write("env/lib/pkg/b.py", worker)
    assert project.codes() == []
    assert project.codes("env/lib") == [("GG201", "env/lib/pkg/a.py", 6)]


def test_a_file_given_twice_is_reported_once(project, worker):
    project.write("pkg/a.py", worker)
    assert project.codes("pkg/a.py", "pkg", ".") == [("GG201", "pkg/a.py", 6)]


BROKEN = {
    "syntax.py": b"def f(:\n    pass\n",
    "null.py": b"x = 1\n\x00\n",
    "latin.py": b"# joblib Parallel torch\nname = '\xe9'\n",
    "unknown_coding.py": b"# -*- coding: klingon -*-\nimport torch\nfrom joblib import Parallel\n",
    "deep.py": b"from joblib import Parallel, delayed\nimport torch\nx = "
    + b"(" * 3000 + b"1" + b")" * 3000 + b"\n",
    "long.py": b"from joblib import Parallel, delayed\nimport torch\nx = " + b"1+" * 30000 + b"1\n",
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_python_is_one_line_and_the_others_are_checked(project, worker, name):
    project.write("good.py", worker)
    project.write(name, BROKEN[name])
    ran = project.lint(json_output=True)
    assert ran.status == 2
    assert ran.codes == [("GG201", "good.py", 6)]
    assert len(ran.err.splitlines()) == 1
    assert name in ran.err
    assert [error["path"] for error in ran.json["errors"]] == [name]


def test_only_a_source_that_nests_deeply_is_said_to(project, worker, monkeypatch):
    def fail(*_):
        raise RecursionError

    project.write("a.py", f"{worker}x = {'1 + ' * 900}1\n")
    assert "nested too deeply" in project.lint("--no-cache").err
    monkeypatch.setattr("gradguard_lint.judgement.judge", fail)
    project.write("a.py", worker)
    assert "gradguard could not check this file: Rec" in project.lint("--no-cache").err


def test_other_encodings_and_line_ends_are_read(project, worker):
    project.write("latin.py", b"# -*- coding: latin-1 -*-\n# \xe9\n" + worker.encode())
    project.write("bom.py", b"\xef\xbb\xbf" + worker.encode())
    project.write("crlf.py", worker.replace("\n", "\r\n").encode())
    assert project.codes() == [
        ("GG201", "bom.py", 6), ("GG201", "crlf.py", 6), ("GG201", "latin.py", 8),
    ]  # fmt: skip


def test_a_path_that_is_not_there(project, worker):
    project.write("good.py", worker)
    ran = project.lint("good.py", "gone.py", json_output=True)
    assert ran.status == 2
    assert "gone.py: error: no such file or folder" in ran.err
    assert ran.codes == [("GG201", "good.py", 6)]


def test_a_dangling_link_and_a_loop_of_links(project, worker):
    project.write("good.py", worker)
    os.symlink("nowhere.py", project.root / "dangling.py")
    os.symlink(".", project.root / "loop")
    ran = project.lint(json_output=True)
    assert ran.status == 2
    assert "dangling.py" in ran.err
    assert ran.codes == [("GG201", "good.py", 6)]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a folder to be closed")
def test_a_folder_that_cannot_be_read(project, worker):
    project.write("good.py", worker)
    project.write("closed/a.py", worker)
    (project.root / "closed").chmod(0)
    try:
        ran = project.lint()
    finally:
        (project.root / "closed").chmod(0o755)
    assert ran.status == 2
    assert "closed: error: cannot be read" in ran.err


def test_a_folder_that_cannot_be_listed_is_said(project, worker, monkeypatch):
    from gradguard_lint.project import files

    project.write("closed/a.py", worker)
    project.write("b.py", worker)
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(files.os, "scandir", scandir)
    ran = project.lint(json_output=True)
    assert (ran.status, ran.codes) == (2, [("GG201", "b.py", 6)])
    assert ran.err == "closed: error: cannot be read: Permission denied\n"


def test_a_file_that_vanishes(project, worker, monkeypatch):
    from gradguard_lint import run as running

    project.write("here.py", worker)
    monkeypatch.setattr(running, "discover", lambda *args: iter(["gone.py", "here.py"]))
    ran = project.lint(json_output=True)
    assert (ran.status, ran.codes) == (2, [("GG201", "here.py", 6)])
    assert ran.err == "gone.py: error: cannot be read: No such file or directory\n"


def test_what_is_checked_is_never_run(project):
    project.write("precious.txt", "still here")
    project.write(
        "danger.py",
        "import os\nimport torch\nfrom joblib import Parallel, delayed\n"
        "os.remove('precious.txt')\n"
        "Parallel(n_jobs=2)(delayed(os.remove)('precious.txt') for _ in range(2))\n",
    )
    assert project.lint().status == 0
    assert (project.root / "precious.txt").read_text() == "still here"


def test_the_linter_imports_neither_the_frameworks_nor_the_guard(project, worker):
    project.write("train.py", worker)
    import sys

    done = subprocess.run(
        [sys.executable, "-c",
         "import sys\nfrom pytest_gradguard.cli import main\nmain(['lint', '--no-cache'])\n"
         "heavy = {'torch', 'joblib', 'numpy', 'pytest', 'libcst', 'packaging',"
         " 'pytest_gradguard.runtime', 'pytest_gradguard.plugin', 'pytest_gradguard.guard'"
         "} & set(sys.modules)\n"
         "sys.exit(f'imported: {heavy}' if heavy else 0)"],
        cwd=project.root, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "GG201" in done.stdout


def test_a_clean_file_costs_no_parser(project):
    project.write("clean.py", "import os\nprint(os.getcwd())\n")
    import sys

    done = subprocess.run(
        [sys.executable, "-c",
         "import sys, argparse\nargparse.ArgumentParser().add_argument('any')\n"
         "known = set(sys.modules)\n"
         "from pytest_gradguard.cli import main\nmain(['lint', '--no-cache'])\n"
         "heavy = {'ast', 'dataclasses', 'inspect', 'json', 'tomllib', 'pathspec',"
         " 'gradguard_lint.analysis', 'pytest_gradguard.pitfalls'} & {*sys.modules} - known\n"
         "sys.exit(f'imported: {heavy}' if heavy else 0)"],
        cwd=project.root, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
