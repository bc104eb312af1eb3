"""Input that cannot be used: one line for each, and the rest is checked all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from pytest_gradguard.cli import main
from pytest_gradguard.platforms import HERE

FOUND = [("GG201", "good.py", 6)]
needs_posix = pytest.mark.skipif(not HERE.forks, reason="pipes, devices and signals of POSIX")


@pytest.fixture
def tree(project, worker):
    """A project with one finding."""
    project.write("good.py", worker)
    return project


def one_line(tree, *args: str) -> str:
    """What is said of the input, while the finding is still there."""
    ran = tree.lint("--no-cache", *args, json_output=True)
    (line,) = ran.err.splitlines()
    assert ran.codes == FOUND
    return line


# -- patterns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["!", "\\", "[z-a]", "x\\", "[", "a[b"])
def test_a_pattern_that_cannot_be_used_costs_only_itself(tree, worker, pattern):
    tree.write("left_out.py", worker)
    tree.write(".gitignore", f"# mine\n{pattern}\nleft_out.py\n")
    assert one_line(tree) == f".gitignore:2: warning: the pattern {pattern!r} cannot be used"
    tree.write(".gitignore", "")

    tree.write("pyproject.toml", f"[tool.gradguard]\nexclude = ['{pattern}', 'left_out.py']\n")
    said = f"pyproject.toml: error: exclude: the pattern {pattern!r} cannot be used"
    assert one_line(tree) == said

    table = f"[tool.gradguard.per-file-ignores]\n'{pattern}' = ['GG2']\n'left*' = ['GG2']\n"
    tree.write("pyproject.toml", table)
    assert one_line(tree) == said.replace("exclude:", "per-file-ignores:")
    assert tree.lint().status == 2


def test_a_pattern_of_the_command_line_that_cannot_be_used_is_named(tree):
    said = "gradguard lint: error: --exclude: the pattern '[' cannot be used"
    assert one_line(tree, "--exclude", "[") == said


def test_a_pattern_that_re_only_warns_of_is_used_in_silence(tree):
    tree.write(".gitignore", "[[:alpha:]x.py\n")
    ran = tree.lint("--no-cache", json_output=True)
    assert (ran.status, ran.err, ran.codes) == (1, "", FOUND)


def test_a_gitignore_that_is_no_utf_8_still_holds(tree, worker):
    tree.write("left_out.py", worker)
    tree.write(".gitignore", b"\xef\xbb\xbf# \xff\xfe\n\xe9.py\r\nleft_out.py\r\n")
    assert tree.codes() == FOUND


# -- files -----------------------------------------------------------------------------------------


@needs_posix
def test_pipes_devices_and_huge_files_are_refused_and_never_waited_for(tree):
    os.mkfifo(tree.root / "pipe.py")
    os.symlink("/dev/zero", tree.root / "zero.py")
    with open(tree.root / "huge.py", "wb") as stream:
        stream.truncate(300 * 1024 * 1024)
    ran = tree.lint(json_output=True)
    assert (ran.status, ran.codes) == (2, FOUND)
    assert ran.err.splitlines() == [
        "huge.py: error: is too large: files above 16 MiB are not checked (`exclude` them)",
        "pipe.py: error: cannot be read: it is a pipe, not a file",
        "zero.py: error: cannot be read: it is a device, not a file",
    ]
    assert [error["path"] for error in ran.json["errors"]] == ["huge.py", "pipe.py", "zero.py"]
    assert "1 file checked: 1 warning; 3 errors (see stderr)" in tree.lint().out


@pytest.mark.parametrize("name", [".gitignore", "pyproject.toml"])
@needs_posix
def test_a_pipe_in_the_place_of_a_setting_is_not_waited_for(tree, name):
    os.mkfifo(tree.root / name)
    assert tree.codes() == FOUND


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge"])
@needs_posix
def test_a_named_configuration_that_is_no_file_is_refused(tree, kind):
    path = tree.root / "named.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        os.symlink("/dev/zero", path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"#" * (2 << 20))
    ran = tree.lint("--config", "named.toml")
    assert (ran.status, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert "named.toml: " in ran.err


@needs_posix
def test_a_current_folder_that_is_gone(project):
    (project.root / "here").mkdir()
    process = project.start(
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: (os.chdir("here"), os.rmdir("../here")),
    )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    said = b"gradguard lint: error: the current folder cannot be used: No such file or directory\n"
    assert err == said


def test_what_is_wrong_is_said_once(tree):
    tree.write("sub/.gitignore", "!\n")
    tree.write("sub/other/a.py", "")
    tree.write(".gitignore", "sub\n")
    ran = tree.lint("sub", "sub/other", "gone", "gone", "")
    assert ran.err.splitlines() == [
        "sub/.gitignore:1: warning: the pattern '!' cannot be used",
        "'': error: no such file or folder",
        "gone: error: no such file or folder",
    ]


def test_only_what_could_be_read_counts_as_checked(tree):
    tree.write("broken.py", "def f(:\n")
    tree.write("fine.py", "x = 1\n")
    ran = tree.lint("broken.py", "fine.py")
    assert ran.err.startswith("broken.py:1: error: invalid syntax")
    assert ran.out == "1 file checked: no findings; 1 error (see stderr)\n"


@pytest.mark.parametrize("exclude", [(), ("--exclude", "a.py")])
def test_a_folder_without_python_files_is_said_to_have_none(exclude, tree, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("")
    ran = tree.lint(str(tmp_path / "empty"), *exclude)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "no Python files or notebooks were found\n"


def test_a_module_too_large_to_be_read_is_not_followed(project):
    work = "import torch\n\n\ndef work(k):\n    return torch.ones(3).cuda()[k]\n"
    project.write("run.py", "from joblib import Parallel, delayed\nfrom jobs import work\n"
                  "Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))\n")  # fmt: skip
    project.write("jobs.py", work)
    assert project.codes("run.py") == [("GG201", "jobs.py", 5)]
    with open(project.root / "jobs.py", "a") as stream:
        stream.truncate(300 * 1024 * 1024)
    assert project.codes("run.py") == []


@needs_posix
def test_file_names_that_are_not_utf_8(project, worker):
    path = os.path.join(os.fsencode(project.root), b"caf\xe9.py")
    with open(path, "wb") as stream:
        stream.write(worker.encode())
    for _ in range(2):  # without and with the cache
        ran = project.lint()
        assert (ran.status, ran.err) == (1, "")
        assert "caf\\" in ran.out
        (finding,) = project.lint(json_output=True).json["findings"]
        assert os.fsencode(finding["location"]["path"]) == b"caf\xe9.py"
    with open(path, "wb") as stream:
        stream.write(b"def f(:\n")
    said = "caf\\xe9.py:1: error: invalid syntax (parsed as Python "
    assert project.lint().err.startswith(said)


def test_names_that_a_terminal_would_obey_are_shown(project, worker):
    name = "a\x1b[31m\nb\u202e\x9b.py"
    project.write(name, worker + "def f(:\n")
    ran = project.lint()
    (line,) = ran.err.splitlines()
    assert line.startswith("a\\x1b[31m\\nb\\u202e\\x9b.py:")
    project.write(name, worker.replace("* k\n", "* k  # \x1b\x07\x9b\n"))
    ran = project.lint("--color", "never")
    assert not set(ran.out) & set("\x1b\x07\x9b\u202e")
    assert "# \\x1b\\x07\\x9b" in ran.out
    json_text = project.lint(json_output=True).out
    assert json_text.isascii()
    assert project.codes() == [("GG201", name, 6)]
    refused = project.lint("--select", "GG\x1b[31m")
    assert "\x1b" not in refused.err
    assert "\x1b" not in project.lint("gone\x1b[31m.py").err


# -- how Python reads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "\x0cimport torch\nfrom joblib import Parallel, delayed\n",
        "import torch\n\x0c from joblib import Parallel, delayed\n".replace("\x0c ", "\x0c"),
        "\ufeff\x0cimport\x0ctorch\nfrom\x0cjoblib\x0cimport\x0cParallel, delayed\n",
        "if True: import torch\nfrom joblib import Parallel, delayed\n",
        "import \\\n  torch\nfrom joblib import Parallel, delayed\n",
        "import os; import torch\nimport sys; from joblib import Parallel, delayed\n",
    ],
)
def test_imports_are_found_in_whatever_form(project, worker, source):
    project.write("a.py", source + worker.split("delayed\n", 1)[1])
    (finding,) = project.lint(json_output=True).json["findings"]
    assert finding["code"] == "GG201"


@pytest.mark.parametrize("separator", ["\x0c", "\x1c", "\x1d", "\x85", "\u2028", "\u2029"])
def test_only_line_ends_of_python_end_a_line(project, worker, separator):
    source = worker.replace("import torch\n", f"import torch  # {separator} {separator}\n")
    project.write("a.py", source)
    line = 'return torch.ones(3, device="cuda").sum().item() * k'
    for ran in (project.lint("a.py"), project.lint("-", stdin=source)):
        assert line in ran.out
        assert ":6:12 in work" in ran.out


def test_a_source_on_standard_input_is_shown_in_its_own_encoding(project, worker):
    source = "# coding: latin-1\n" + worker.replace('* k\n', '* k, "\xe9"\n')  # fmt: skip
    ran = project.lint("-", stdin=source.encode("latin-1"))
    assert 'item() * k, "\xe9"' in ran.out


@pytest.mark.parametrize("place", ["first line", "last line"])
@pytest.mark.parametrize("big", [False, True])
def test_latin_1_is_refused_where_python_refuses_it(tree, place, big):
    """Python's compiler looks at no comment, but Python refuses the file all the same."""
    filling = b"x = 1  # coding is easy\n" * (30_000 if big else 1)
    lines = [b"# caf\xe9\n", filling] if place == "first line" else [filling, b"# caf\xe9\n"]
    path = tree.write("latin.py", b"".join(lines))
    number = 1 if place == "first line" else filling.count(b"\n") + 1
    said = f"latin.py:{number}: error: cannot be decoded: byte 0xe9 is not utf-8, and no other"
    assert one_line(tree).startswith(said)
    path.write_bytes(b"# coding: latin-1\n" + path.read_bytes())
    assert tree.lint("--no-cache").status == 1


# -- what is written -------------------------------------------------------------------------------


def test_the_report_is_whole_or_not_there(tree, monkeypatch):
    earlier = "1 file checked: no findings\n"
    report = tree.write("report.json", earlier)
    os.chmod(report, 0o640)
    from gradguard_lint import batch

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batch, "analyse", interrupted)
        ran = tree.lint("--no-cache", "--output", "report.json")
        assert (ran.status, ran.out, ran.err) == (130, "", "gradguard: interrupted\n")
    assert report.read_text() == earlier
    assert tree.lint("--no-cache", "--output", "report.json").status == 1
    assert "GG201" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tree.root.iterdir()) == ["good.py", "report.json"]


@pytest.mark.parametrize(
    "target",
    [
        *(".", "no/such/folder.json", "good.py/x", "loop", "", "pipe", "/dev/full"),
        *("good.py", "new.toml", "kept.txt"),
    ],
)
@needs_posix
def test_a_report_that_cannot_be_written_is_refused_before_the_work(tree, target, monkeypatch):
    os.symlink("loop", tree.root / "loop")
    os.mkfifo(tree.root / "pipe")
    kept = {
        path: path.read_text() for path in (tree.write("kept.txt", "mine"), tree.root / "good.py")
    }
    if target != "/dev/full":
        monkeypatch.setattr("gradguard_lint.run.run", None)
    ran = tree.lint("--no-cache", "--output", target)
    assert (ran.status, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert target in line
    assert kept == {path: path.read_text() for path in kept}


@needs_posix
def test_a_report_through_a_link_a_device_and_a_pipe(tree):
    os.symlink("real.txt", tree.root / "link.txt")
    assert tree.lint("--output", "link.txt").status == 1
    assert (tree.root / "link.txt").is_symlink()
    assert "GG201" in (tree.root / "real.txt").read_text()
    assert tree.lint("--output", "/dev/null").status == 1
    assert not os.path.isfile("/dev/null")
    os.mkfifo(tree.root / "pipe")
    reader = subprocess.Popen(["cat", "pipe"], cwd=tree.root, stdout=subprocess.PIPE)
    for _ in range(200):
        ran = tree.lint("--output", "pipe")
        if ran.status == 1:
            break
        assert "nothing reads from it" in ran.err
        time.sleep(0.05)
    assert b"GG201" in reader.communicate(timeout=60)[0]


@needs_posix
def test_dev_stdout_is_standard_output_itself(tree):
    log = tree.write("log.txt", "before\n")
    with open(log, "a") as stream:
        assert tree.start("--output", "/dev/stdout", stdout=stream).wait(60) == 1
    text = log.read_text()
    assert text.startswith("before\nwarning[GG201]")


@needs_posix
def test_standard_output_that_is_full_or_closed(tree):
    with open("/dev/full", "w") as full:
        process = tree.start(stdout=full, stderr=subprocess.PIPE)
        said = process.communicate(timeout=60)[1].decode()
    assert said == "gradguard: standard output cannot be written: No space left on device\n"
    assert process.returncode == 2
    process = tree.start(stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert process.communicate(timeout=60)[1] == b"gradguard: standard output is closed\n"
    assert process.returncode == 2
    process = tree.start(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141


def test_standard_input_that_is_closed_or_too_large(project, monkeypatch):
    monkeypatch.setattr("gradguard_lint.project.contents.LARGEST", 100)
    ran = project.lint("-", stdin="x = 1\n" * 100)
    assert (ran.status, ran.out) == (2, "")
    assert "standard input is too large" in ran.err
    process = project.start("-", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    said = process.communicate(timeout=60)[1].decode()
    assert said == "gradguard lint: error: standard input cannot be read: it is closed\n"


def test_an_encoding_that_lacks_a_character_loses_nothing(project, worker):
    project.write("na\u00efve.py", worker)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = project.start(stdout=subprocess.PIPE, env=environment)
    assert b"na\\xefve.py:6:12" in process.communicate(timeout=60)[0]


@needs_posix
def test_ctrl_c_is_one_line_at_once_and_leaves_no_process(project, worker):
    for number in range(600):
        project.write(f"p{number}/a.py", worker + slow(number))
    process = project.start(
        "--no-cache", "--jobs", "3", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
        # A run of tests in the background ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        while len(members(process.pid)) < 3:
            assert process.poll() is None, "it was done before there were workers"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, b"", b"gradguard: interrupted\n")
        assert members(process.pid) == []
    finally:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


def slow(number: int) -> str:
    """A program that takes a while."""
    return "".join(
        f"\n\ndef f{k}(x):\n    for a in range({number}):\n"
        f"        x = x.to('cuda') if a else x + a\n    return f{k + 1}(x)\n"
        for k in range(150)
    )


def members(group: int) -> list[int]:
    """The processes of a group that still run."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stream:
                state, _, of_group = stream.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            found.append(int(name))
    return found


@pytest.mark.parametrize(
    ("environment", "arguments", "coloured"),
    [
        ({}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": ""}, [], True),
        ({"TERM": "dumb"}, [], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
        ({}, ["--color=never"], False),
    ],
)
@needs_posix
def test_colour_on_a_terminal(tree, environment, arguments, coloured):
    import pty

    leader, follower = pty.openpty()
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    process = tree.start(
        *arguments, stdout=follower, env={**inherited, "TERM": "xterm", **environment}
    )
    os.close(follower)
    seen = b""
    try:
        while chunk := os.read(leader, 65536):
            seen += chunk
    except OSError:
        pass
    os.close(leader)
    assert process.wait(60) == 1
    assert (b"\x1b[" in seen) is coloured


def test_colour_elsewhere(tree, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b[" not in tree.lint().out
    assert "\x1b[" in tree.lint("--color", "always").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in tree.lint().out
    assert "\x1b[" not in tree.lint("--color", "never").out
    tree.lint("--output", "report.txt")
    assert "\x1b[" not in (tree.root / "report.txt").read_text()
    assert main(["lint", "--color", "sometimes"]) == 2


# -- files that name none of the tool's words ------------------------------------------------------


def test_what_is_named_is_read_whatever_it_holds(tree, monkeypatch):
    monkeypatch.setattr("gradguard_lint.run.CHECKED_IN_FULL", 0)
    tree.write("broken.py", "def f(:\n")
    tree.write("odd.py", "# -*- coding: bogus -*-\nx = 1\n")
    odd = "odd.py:1: error: cannot be decoded: unknown encoding: bogus"
    assert one_line(tree) == odd
    ran = tree.lint("--no-cache", "good.py", "broken.py", "odd.py")
    assert ran.status == 2
    syntax, encoding = ran.err.splitlines()
    assert syntax.startswith("broken.py:1: error: invalid syntax")
    assert encoding == odd
    assert tree.lint("-", stdin="def f(:\n").status == 2


def test_in_a_folder_one_large_file_hides_no_small_one(tree, monkeypatch):
    monkeypatch.setattr("gradguard_lint.run.CHECKED_IN_FULL", 100)
    tree.write("large.py", "x = [" + "1, " * 100 + "]\n")
    tree.write("small.py", "def f(:\n")
    assert one_line(tree).startswith("small.py:1: error: invalid syntax")
