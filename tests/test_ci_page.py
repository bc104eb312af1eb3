"""The ready workflows of docs/ci.md are what their hosts take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gradguard.cli.lint.options import build_parser

PAGE = Path(__file__).parents[1] / "docs" / "ci.md"
WORKFLOWS = PAGE.parents[1] / ".github" / "workflows"
FILES = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
CHECKS = {
    ".github/workflows/gradguard.yml": ["check_jsonschema", "--builtin-schema", "github-workflows"],
    ".gitlab-ci.yml": ["check_jsonschema", "--builtin-schema", "gitlab-ci"],
    ".pre-commit-config.yaml": ["pre_commit", "validate-config"],
}


def test_each_file_of_the_page_has_its_check():
    assert FILES.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", CHECKS)
def test_files_are_what_their_hosts_take(name, tmp_path):
    def check(text: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / Path(name).name
        file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", *CHECKS[name], str(file)]
        environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache")}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    done = check(FILES[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert check("- 1\n").returncode != 0


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_our_own_workflows_are_what_github_takes(path):
    command = [sys.executable, "-m", *CHECKS[".github/workflows/gradguard.yml"], str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [".github/workflows/gradguard.yml", ".gitlab-ci.yml"])
def test_their_commands_of_the_linter_can_be_parsed(name):
    commands = re.findall(r"gradguard lint (.*)", FILES[name])
    assert commands
    for command in commands:
        build_parser().parse_args(command.split())


def test_the_page_names_every_format():
    formats = next(
        action.choices
        for action in build_parser()._actions
        if "--output-format" in action.option_strings
    )
    assert [f"`{name}`" for name in formats if f"| `{name}` |" not in PAGE.read_text("utf-8")] == []
