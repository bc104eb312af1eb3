"""Repairs of functions that other files use: these may change meaning, so they are unsafe."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.files import ALWAYS_OUT
from gradguard_lint.project.reader import Reader
from pytest_gradguard.findings import display_path

Raw = dict[str, Any]

FILES = 5000
"""The most files to search; in a larger project, any function may be used elsewhere."""


def judged(findings: Sequence[Raw], contents: Mapping[str, bytes]) -> list[Raw]:
    """`findings`, with repairs that affect other files marked as unsafe."""
    return [_judged(raw, contents) for raw in findings]


def _judged(raw: Raw, contents: Mapping[str, bytes]) -> Raw:
    repair = raw["edits"]
    if repair is None or repair["applicability"] == "unsafe":
        return raw
    own = {edit["path"] for edit in repair["edits"]}
    for path in own:
        for name in repair["alone"]:
            other = _used_elsewhere(name, path, own, contents)
            if other is not None:
                message = f"{repair['message']}; {other} may use `{name}`, too"
                return {**raw, "edits": {**repair, "applicability": "unsafe", "message": message}}
    return raw


def _used_elsewhere(
    name: str, path: str, own: set[str], contents: Mapping[str, bytes]
) -> str | None:
    """Another file that mentions both the function and its module."""
    if path.startswith("<"):
        return None
    folder, base = os.path.split(path)
    stem = os.path.basename(folder) if base == "__init__.py" else base.rpartition(".")[0]
    names = re.compile(rb"\b%s\b" % re.escape(name).encode())
    module = re.compile(rb"\b%s\b" % re.escape(stem).encode())
    others = _files(folder)
    if others is None:
        return "one of many files"
    for other in sorted({*others, *contents} - own):
        data = contents.get(other)
        if data is None:
            data = _read(other)
        if names.search(data) and module.search(data):
            return display_path(other)
    return None


@cache
def _files(folder: str) -> tuple[str, ...] | None:
    """The files of the project around `folder`; None if there are too many to search."""
    root = Reader().project_of(folder)
    found: list[str] = []
    known = any(os.path.exists(os.path.join(root, name)) for name in ("pyproject.toml", ".git"))
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in ALWAYS_OUT] if known else []
        found += (os.path.join(place, name) for name in files if name.endswith((".py", ".ipynb")))
        if len(found) > FILES:
            return None
    return tuple(found)


def _read(path: str) -> bytes:
    try:
        return read(path)
    except Unusable:
        return b""
