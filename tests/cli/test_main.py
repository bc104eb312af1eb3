"""The command `gradguard` itself: finding subcommands, help, and bad command lines."""

from __future__ import annotations

import argparse
import subprocess
import sys
import types

import pytest

import pytest_gradguard
from pytest_gradguard.cli import main


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A subcommand's module, in the place of `rules`, that prints its argument and returns 7."""
    module = types.ModuleType("pytest_gradguard.cli.rules")

    def build_parser() -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(description="echoes")
        parser.add_argument("--word", required=True)
        return parser

    def run(args: argparse.Namespace) -> int:
        print(args.word)
        return 7

    module.build_parser = build_parser
    module.run = run
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(pytest_gradguard.cli, "rules", module, raising=False)
    return module


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("lint", "run", "explain", "rules"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gradguard {pytest_gradguard.__version__}\n"


@pytest.mark.parametrize(("arguments", "named"), [(["frobnicate"], "frobnicate"), ([], "command")])
def test_unknown_command_is_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(arguments, capsys)
    assert named in line
    assert "lint, run, explain, rules" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lnt"], "unknown command 'lnt', did you mean 'lint'? (allowed: lint, run,"),
        (["--hlp"], "unknown option '--hlp', did you mean '--help'?"),
        (["lint", "--selct", "GG1"], "unrecognized arguments: --selct, did you mean '--select'?"),
        (["run", "--epochs", "3", "a.py"], ": --epochs: options of the program go after its name"),
        (["run", "--reprt=a", "a.py"], ": --reprt=a, did you mean '--report'?"),
        (["compare", "--lr=3", "a.py"], ": --lr=3: options of the program go after its name"),
    ],
)
def test_a_misspelt_word_gets_the_one_that_is_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(arguments, capsys)


def test_an_unknown_option_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["--bogus"], capsys)
    assert line == "gradguard: unknown option '--bogus' (allowed: --help, --version)"


def test_arguments_and_status_pass_through(
    echo: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "--word", "hello"]) == 7
    assert capsys.readouterr().out == "hello\n"


def test_help_of_a_command_names_it(
    echo: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rules", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: gradguard rules ")
    assert "echoes" in text


@pytest.mark.parametrize("arguments", [["rules"], ["rules", "--word", "x", "--bad"]])
def test_bad_arguments_are_one_line(
    echo: types.ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(arguments, capsys).startswith("gradguard rules: ")


def test_only_the_asked_command_is_imported() -> None:
    code = (
        "import sys\n"
        "from pytest_gradguard.cli import main\n"
        "main(['--version'])\n"
        "heavy = {'pytest', 'libcst', 'joblib', 'torch', 'pytest_gradguard.runtime'}\n"
        "sys.exit(bool(heavy & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_closed_pipe_ends_it_quietly() -> None:
    code = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'pytest_gradguard', '--help']\n"
        "process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "process.stdout.close()\n"
        "sys.stdout.write(process.stderr.read().decode())\n"
        "sys.exit(process.wait())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == ""
    assert done.returncode == 141
