"""What the package says of itself: on PyPI, and to pre-commit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def urls() -> dict[str, str]:
    section = (ROOT / "pyproject.toml").read_text().split("[project.urls]\n")[1].split("\n[")[0]
    return dict(re.findall(r'^(\w+) = "(.*)"$', section, re.MULTILINE))


def test_links_work_wherever_the_readme_is_shown():
    targets = re.findall(r"\]\(([^)]*)\)|^\[[^\]]+\]: (.*)$", README, re.MULTILINE)
    links = [inline or reference for inline, reference in targets]
    assert len(links) > 3
    assert all(link.startswith("https://") for link in links)
    defined = set(re.findall(r"^\[([^\]]+)\]:", README, re.MULTILINE))
    used = set(re.findall(r"\]\[(\w+)\]", README))
    assert used == defined


def test_every_first_page_names_how_to_install():
    pages = [README, *((ROOT / f"docs/{name}.md").read_text() for name in ("index", "start"))]
    for page in pages:
        assert "\npip install pytest-gradguard" in page
        assert re.search(r"\]\(install\.md\)|\]\[install\]", page)
        assert "git+" not in page  # the page about it alone says what to do before a release


def test_links_into_the_repository_lead_to_files_that_are_there():
    home = urls()["Homepage"]
    names = re.findall(
        re.escape(home) + r"/(?:blob|tree)/main/([\w./-]+)", README + urls()["Documentation"]
    )
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "docs/lint.md"])
def test_the_repository_has_one_home(name):
    home = urls()["Homepage"]
    assert all(link.startswith(home) for link in urls().values())
    found = re.findall(r"https://github\.com/[\w-]+/pytest-gradguard", (ROOT / name).read_text())
    assert set(found) == {home}


def test_the_hooks_that_the_docs_name_are_there():
    offered = re.findall(
        r"^- id: (.*)$", (ROOT / ".pre-commit-hooks.yaml").read_text(), re.MULTILINE
    )
    named = re.findall(r"- id: ([\w-]+)", (ROOT / "docs/lint.md").read_text())
    assert sorted(named) == sorted(offered)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ("citation-file-format", ["CITATION.cff"]),
        ("github-issue-config", [".github/ISSUE_TEMPLATE/config.yml"]),
        (
            "github-issue-forms",
            [f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("false_alarm", "fault", "missed")],
        ),
    ],
)
def test_files_for_github_are_what_it_takes(schema, names):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    files = [str(ROOT / name) for name in names]
    done = subprocess.run([*command, *files], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
