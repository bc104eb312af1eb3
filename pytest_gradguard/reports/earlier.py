"""What a report may take the place of: an earlier report, known by how it begins."""

from __future__ import annotations

import os
import re

__all__ = ["why_kept"]

_SOURCES = frozenset(
    (
        *(".c", ".cc", ".cfg", ".cpp", ".cu", ".h", ".ini", ".ipynb", ".js", ".lock", ".md"),
        *(".pxd", ".py", ".pyi", ".pyw", ".pyx", ".rst", ".sh", ".toml", ".yaml", ".yml"),
    )
)
"""Suffixes of what people write: no report of ours has one, not even where the file is new."""

_START = 1 << 16
"""So many bytes decide; the message of one finding is shorter."""

_CODE = r"GG\d{3}"
_SEVERITY = rf"(?:error|warning|info)\[{_CODE}\] "
_TEXT = r'"(?:[^"\\]|\\.)*"'
_BEGINNINGS = re.compile(
    "|".join(
        (
            r'\{\s*"schema": \d+,\s*"tool": \{\s*"name": "gradguard"',  # JSON
            r"<!DOCTYPE html>(?s:.){0,1000}?<title>gradguard: ",
            r'\{\s*"\$schema": "[^"]*/sarif-schema-[\d.]+\.json",\s*"version": "[\d.]+",'
            r'\s*"runs": \[\s*\{\s*"tool": \{\s*"driver": \{\s*"name": "gradguard"',
            r'<\?xml [^>]*\?>\s*<testsuites name="gradguard"',  # JUnit
            rf'\[\s*\{{\s*"description": {_TEXT},\s*"check_name": "{_CODE} ',  # GitLab
            r"\[\]\s*\Z",  # GitLab, without findings
            r"::(?:error|warning|notice) title=gradguard[ ,]",  # GitHub
            rf"{_SEVERITY}(?:\[\*\] )?[a-z-]+",  # text
            rf"[^\n]+:\d+:\d+: {_SEVERITY}",  # concise
            r"\d+ files? checked[,: ]|no Python files or notebooks were found\n",  # both
            r"--- [^\n]+\n\+\+\+ [^\n]+\n@@ ",  # --diff
        )
    )
)
_MARKUP = re.compile(r"\x1b\[[\d;]*m")


def why_kept(path: str) -> str | None:
    """Why no report may be written to `path`; None where one may.

    Raises:
        OSError: what is there cannot be read.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _SOURCES:
        return f"{suffix} files are sources, not reports (allowed: such as .json, .html, .txt)"
    if not os.path.exists(path):
        return None
    with open(path, "rb") as stream:
        start = stream.read(_START)
    text = _MARKUP.sub("", start.decode("utf-8", "replace").replace("\r\n", "\n"))
    if not text or _BEGINNINGS.match(text):
        return None
    return "it is not an earlier report of gradguard (allowed: a new or empty file, or a report)"
