"""``[tool.gradguard]``: read once, checked, with one clear line for what is wrong in it."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple


class SettingsError(Exception):
    """The configuration cannot be used; the message is one line that says where and why."""


class Settings(NamedTuple):
    """What ``[tool.gradguard]`` says.

    Attributes:
        select: codes or prefixes to report (all where it is None).
        extend_select: codes or prefixes in addition.
        ignore: codes or prefixes to leave out, by lint and at run time.
        exclude: patterns, as in ``.gitignore``, of files to leave out.
        per_file_ignores: patterns of files, and the codes to leave out in them.
        delayed: dotted names of your own functions that count as ``joblib.delayed``.
        parallel: dotted names of your own classes that count as ``joblib.Parallel``.
        min_severity: the lowest severity to report, or None.
        fail_on: the runtime's ``fail-on``, or None.
        root: the folder that patterns are relative to.
    """

    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    delayed: tuple[str, ...] = ()
    parallel: tuple[str, ...] = ()
    min_severity: str | None = None
    fail_on: str | None = None
    root: str = ""

    def ignored_codes(self) -> frozenset[str]:
        """The codes that `ignore` stands for."""
        if not self.ignore:
            return frozenset()
        from pytest_gradguard.pitfalls import expand

        return expand(self.ignore)


_LISTS = ("select", "extend-select", "ignore", "exclude", "delayed", "parallel")
_CHOICES = {
    "min-severity": ("info", "warning", "error"),
    "fail-on": ("error", "warning", "never"),
}
_KEYS = (*_LISTS, "per-file-ignores", *_CHOICES)


def find(start: str | None = None) -> str | None:
    """The nearest ``pyproject.toml`` at or above `start` (the current folder)."""
    folder = os.path.abspath(start or os.getcwd())
    while True:
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            return path
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def load(path: str | None = None) -> Settings:
    """The settings of `path`, or of the nearest ``pyproject.toml``.

    A file that is named may be a ``pyproject.toml``, or hold the keys at its top.

    Raises:
        SettingsError: the file cannot be read, or says something that is not understood.
    """
    if path is not None:
        return _read(path, os.path.basename(path) != "pyproject.toml", _bytes(path))
    found = find()
    return Settings(root=os.getcwd()) if found is None else load_project(found)


def load_project(path: str) -> Settings:
    """The settings of the ``pyproject.toml`` at `path`; one that has none is not even parsed.

    Raises:
        SettingsError: as for `load`.
    """
    data = _bytes(path)
    if b"tool.gradguard" not in data:
        return Settings(root=os.path.dirname(os.path.abspath(path)))
    return _read(path, False, data)


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None


def _read(path: str, keys_at_top: bool, data: bytes) -> Settings:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: is not valid TOML: {error}") from None
    tool = document.get("tool", {})
    table = tool.get("gradguard") if isinstance(tool, dict) else None
    if table is None:
        table = document if keys_at_top and "tool" not in document else {}
    return parse(table, path)


def parse(table: Any, where: str) -> Settings:
    """The settings that `table` holds; `where` names its file in errors.

    Raises:
        SettingsError: an unknown key, an unknown code, or a value of the wrong kind.
    """
    if not isinstance(table, dict):
        raise SettingsError(f"{where}: [tool.gradguard] must be a table")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            raise SettingsError(
                f"{where}: unknown key {key!r} in [tool.gradguard] (allowed: {', '.join(_KEYS)})"
            )
        name = key.replace("-", "_")
        if key in _LISTS:
            values[name] = _strings(value, key, where)
        elif key == "per-file-ignores":
            if not isinstance(value, dict):
                raise SettingsError(f"{where}: per-file-ignores must be a table of lists")
            values[name] = tuple(
                (pattern, _strings(codes, f"per-file-ignores.{pattern}", where))
                for pattern, codes in value.items()
            )
        else:
            allowed = _CHOICES[key]
            if value not in allowed:
                raise SettingsError(
                    f"{where}: {key} must be one of {', '.join(allowed)}, not {value!r}"
                )
            values[name] = value
    settings = Settings(root=os.path.dirname(os.path.abspath(where)), **values)
    _check_codes(settings, where)
    return settings


def _strings(value: Any, key: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SettingsError(f"{where}: {key} must be a list of strings")
    return tuple(value)


def _check_codes(settings: Settings, where: str) -> None:
    lists = [settings.select or (), settings.extend_select, settings.ignore]
    lists.extend(codes for _, codes in settings.per_file_ignores)
    if not any(lists):
        return
    from pytest_gradguard.pitfalls import expand

    try:
        expand([code for codes in lists for code in codes])
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None
