"""Paths as Windows has them: drives, backslashes, and names whose case does not matter."""

from __future__ import annotations

import ntpath
from types import SimpleNamespace
from typing import Any

import pytest

from gradguard_lint.project import patterns
from pytest_gradguard import findings


@pytest.fixture(autouse=True)
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that show and compare paths have the `os` of Windows, at `C:\\work`."""
    path: Any = SimpleNamespace(**{**vars(ntpath), "abspath": absolute, "relpath": relative})
    system = SimpleNamespace(path=path, sep="\\", getcwd=lambda: r"C:\work")
    for module in (patterns, findings):
        monkeypatch.setattr(module, "os", system)


def absolute(path: str) -> str:
    return ntpath.normpath(ntpath.join(r"C:\work", path))


def relative(path: str, start: str) -> str:
    return ntpath.relpath(absolute(path), absolute(start))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (r"C:\work\package\train.py", "package/train.py"),
        (r"package\train.py", "package/train.py"),
        (r"c:\WORK\train.py", "train.py"),
        (r"C:\workshop\train.py", "C:/workshop/train.py"),
        (r"D:\train.py", "D:/train.py"),
        ("<string>", "<string>"),
    ],
)
def test_paths_are_shown_with_slashes_below_the_current_folder(path: str, shown: str) -> None:
    assert findings.display_path(path) == shown


@pytest.mark.parametrize(
    ("path", "excluded"),
    [
        (r"C:\work\old\train.py", True),
        (r"C:\work\new\train.py", False),
        (r"c:\work\old\train.py", True),
        (r"D:\train.py", False),
    ],
)
def test_patterns_match_below_their_folder(path: str, excluded: bool) -> None:
    verdict, _ = patterns.compile_patterns(["/old/"])
    assert patterns.matches(verdict, path, r"C:\work") == excluded
