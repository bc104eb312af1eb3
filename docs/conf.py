"""The documentation site: `make docs` builds it into ``.venv/site``."""

from pathlib import Path

from pytest_gradguard import __version__

project = "gradguard"
author = "the gradguard developers"
copyright = f"2026, {author}. MIT licence"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "none"
nitpick_ignore = [("py:class", "collections.abc.Sequence")]
default_role = "code"
napoleon_use_ivar = True
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["*.py"]
html_theme = "furo"
pygments_dark_style = "github-dark"
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_title = f"gradguard {release}"
html_theme_options = {
    "source_repository": "https://github.com/gradguard/pytest-gradguard/",
    "source_branch": "main",
    "source_directory": "docs/",
}
