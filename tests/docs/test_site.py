"""The site builds without a warning, and its pages name what there is."""

from __future__ import annotations

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import run_python

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.skipif(
    not all(find_spec(name) for name in ("sphinx", "furo", "myst_parser")),
    reason="Sphinx, furo or myst-parser is not installed",
)
def test_the_site_builds_and_every_link_inside_it_leads_somewhere(tmp_path: Path) -> None:
    arguments = ("-W", "--keep-going", "-n", "-q", "-b", "html", "-d", tmp_path / "trees")
    done = run_python("-m", "sphinx", *arguments, DOCS, tmp_path / "site", limit=240)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "pitfalls" / "gg103.html").exists()


@pytest.mark.parametrize("page", ["command_line", "facts", "peers"])
def test_a_page_that_is_made_from_a_record_is_up_to_date(page: str) -> None:
    made = runpy.run_path(str(DOCS / f"make_{page}.py"))["page"]()
    said = f"run: python docs/make_{page}.py > docs/{page}.md"
    assert (DOCS / f"{page}.md").read_text(encoding="utf-8") == made, said


@pytest.mark.parametrize("page", ["promises", "security"])
def test_every_promise_names_tests_that_there_are(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`", text)
    assert len(named) > 10
    for path, test in named:
        assert (ROOT / path).exists(), path
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), test


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 knows no columns of a call")
@pytest.mark.parametrize("page", ["index", "start"])
def test_the_report_on_a_first_page_is_what_is_printed(page: str, tmp_path: Path) -> None:
    if not (find_spec("torch") and find_spec("joblib")):
        pytest.skip("torch or joblib is not installed")
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    report = re.search(r"^```\n(error\[GG103\].*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert program
    assert report
    (tmp_path / "train.py").write_text(program[1].replace("    # gradguard reports", "#"))
    done = run_python(
        *("-m", "pytest_gradguard", "run", "train.py"),
        folder=tmp_path,
        environment={"COLUMNS": "100"},
        forked="torch",
    )
    assert report[1] in done.stderr
