"""The site builds without a warning, its search finds its pages, and these name what there is."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browsers import chromium
from children import run_python
from shared_results import folder_of_the_run, once

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; every warning, such as a link to nowhere, is an error."""
    if not all(find_spec(name) for name in ("sphinx", "furo", "myst_parser")):
        pytest.skip("Sphinx, furo or myst-parser is not installed")
    folder = folder_of_the_run(tmp_path_factory) / "site"
    arguments = ("-W", "--keep-going", "-n", "-q", "-b", "html", "-d", f"{folder}-trees")

    def build() -> str:
        return run_python("-m", "sphinx", *arguments, DOCS, folder, limit=240).stderr

    assert once(folder.parent, "built", build) == ""
    return folder


def test_the_site_builds_and_every_link_inside_it_leads_somewhere(site: Path) -> None:
    assert (site / "pitfalls" / "gg103.html").exists()


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as started:
        yield started


FOUND = """
const done = arguments[0];
const look = () => {
  if (!document.querySelector(".search-summary")?.textContent) return setTimeout(look, 20);
  const found = [...document.querySelectorAll("ul.search > li > a")];
  done(found.map((link) => link.getAttribute("href")));
};
look();
"""


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("my gradient is None after joblib", "howto/gradient-none-after-joblib"),
        ("x.grad is None with n_jobs=2", "howto/gradient-none-after-joblib"),
        ("joblib pickle tensor requires_grad", "howto/gradient-none-after-joblib"),
        ("loss does not decrease with n_jobs", "howto/loss-stuck-with-several-workers"),
        ("backward in worker", "pitfalls/gg106"),
        ("DataLoader same random numbers", "howto/same-random-numbers"),
        ("cannot re-initialize CUDA in forked subprocess", "howto/cannot-re-initialize-cuda"),
        ("cowardly refusing to serialize non-leaf tensor", "howto/cowardly-refusing"),
        ("GradientTape None thread", "howto/gradienttape-returns-none"),
        ("Keras model not updated after fit in worker", "howto/keras-model-unchanged"),
        ("DDP hangs unused parameters", "howto/ddp-expected-to-have-finished-reduction"),
        ("element 0 of tensors does not require grad", "howto/all-gather-no-gradient"),
        ("DDP weights diverge between GPUs", "howto/ranks-give-different-losses"),
        ("DistributedSampler set_epoch same order", "howto/distributed-sampler-same-order"),
        ("test hangs after fork", "howto/my-test-hangs"),
        ("torch.no_grad threads workers", "pitfalls/gg301"),
        ("check that every parameter gets a gradient", "watch_gradients"),
        ("gradcheck numerical gradient", "is-my-gradient-right"),
        ("run CUDA tests without a GPU", "simulated_gpus"),
        ("suppress a warning on one line", "lint"),
        ("pyproject.toml settings", "configuration"),
        ("Jupyter magic", "notebooks"),
        ("GitHub Actions annotations", "ci"),
        ("install gradguard", "install"),
    ],
)
def test_a_search_finds_its_page(site: Path, driver: Any, query: str, page: str) -> None:
    driver.get((site / "search.html").as_uri() + "?q=" + quote(query))
    found = driver.execute_async_script(FOUND)
    first = [address.partition("#")[0].partition("?")[0] for address in found[:3]]
    assert f"{page}.html" in first


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
        environment={"COLUMNS": "80"},
        forked="torch",
    )
    assert report[1] in done.stderr
