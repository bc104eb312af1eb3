"""``[tool.gradguard]``: read once, checked, with one clear line for what is wrong in it."""

from __future__ import annotations

import os
import re
import sys

from pytest_gradguard.records import Record, record
from pytest_gradguard.suggestions import did_you_mean

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    Model = tuple[tuple[str, Any], ...]
    """One of your own libraries' names: the items of its table."""


class SettingsError(Exception):
    """The configuration cannot be used; the message is one line that says where and why."""


@record
class Settings(Record):
    """What ``[tool.gradguard]`` says.

    Attributes:
        select: codes or prefixes to report (all where it is None).
        extend_select: codes or prefixes in addition.
        ignore: codes or prefixes to leave out, by lint and at run time.
        exclude: patterns, as in ``.gitignore``, of files to leave out.
        per_file_ignores: patterns of files, and the codes to leave out in them.
        delayed: dotted names of your own functions that count as ``joblib.delayed``.
        parallel: dotted names of your own classes that count as ``joblib.Parallel``.
        models: what your own libraries do, each as the items of its table.
        stubs: folders of stub files that say what your own libraries do.
        target_version: the Python that the checked programs run on, or None.
        start_method: how their processes start, or None.
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
    models: tuple[Model, ...] = ()
    stubs: tuple[str, ...] = ()
    target_version: tuple[int, int] | None = None
    start_method: str | None = None
    min_severity: str | None = None
    fail_on: str | None = None
    root: str = ""

    def stub_folders(self) -> tuple[str, ...]:
        """The folders of `stubs`, as absolute paths."""
        return tuple(os.path.abspath(os.path.join(self.root, folder)) for folder in self.stubs)

    def ignored_codes(self) -> frozenset[str]:
        """The codes that `ignore` stands for."""
        if not self.ignore:
            return frozenset()
        from pytest_gradguard.pitfalls import expand

        return expand(self.ignore)


START_METHODS = ("fork", "spawn", "forkserver")
"""The ways in which a process may start."""

_LISTS = ("select", "extend-select", "ignore", "exclude", "delayed", "parallel", "stubs")
_NAMES = ("delayed", "parallel")
_CHOICES = {
    "min-severity": ("info", "warning", "error"),
    "fail-on": ("error", "warning", "never"),
    "start-method": START_METHODS,
}
_KEYS = (*_LISTS, "per-file-ignores", "models", "target-version", *_CHOICES)
_MODEL = {
    "does": ("pool", "executor", "process", "spawn", "task", "parallel", "identity"),
    "start": (*START_METHODS, "loky", "thread"),
}
_METHODS = (
    "map",
    "imap",
    "starmap",
    "map_async",
    "starmap_async",
    "apply",
    "apply_async",
    "submit",
)
_LARGEST = 1 << 20


def load(path: str | None = None) -> Settings:
    """The settings of the file `path`, or those that hold in the current folder.

    A file that is named may be a ``pyproject.toml``, or hold the keys at its top.

    Raises:
        SettingsError: the file cannot be read, or says something that is not understood.
    """
    if path is None:
        return nearest(os.getcwd())
    said = document(path, _bytes(path))
    table = _table(said, path)
    if table is None and os.path.basename(path) != "pyproject.toml" and "tool" not in said:
        table = said
    if table is None:
        raise SettingsError(f"{path}: has no table [tool.gradguard]")
    return parse(table, path)


def nearest(folder: str) -> Settings:
    """The settings of the nearest ``pyproject.toml`` with a table, in `folder` or above it.

    Raises:
        SettingsError: as for `load`.
    """
    current = os.path.abspath(folder)
    while True:
        settings = in_folder(current)
        if settings is not None:
            return settings
        parent = os.path.dirname(current)
        if parent == current:
            return Settings(root=os.path.abspath(folder))
        current = parent


def in_folder(folder: str) -> Settings | None:
    """The settings of the ``pyproject.toml`` in `folder`; None where it has no table for us.

    Raises:
        SettingsError: as for `load`.
    """
    path = os.path.join(folder, "pyproject.toml")
    if not os.path.isfile(path):
        return None
    data = _bytes(path)
    if b"gradguard" not in data and b"\\" not in data:
        return None
    if not re.search(_MAY_HAVE_TABLE, data):
        return None
    table = _table(document(path, data), path)
    return None if table is None else parse(table, path)


_MAY_HAVE_TABLE = rb"\\[uU]|\btool\b[\"']?[ \t]*(?:\.[ \t]*[\"']?gradguard|[]=][\s\S]*gradguard)"
"""What a file has that holds our table; a quoted key may be spelled in escapes."""


def _bytes(path: str) -> bytes:
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise SettingsError(f"{_name(path)}: cannot be read: it is not a file")
        with open(path, "rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        raise SettingsError(f"{_name(path)}: cannot be read: {error.strerror}") from None
    if len(data) > _LARGEST:
        raise SettingsError(f"{_name(path)}: is larger than {_LARGEST >> 20} MiB")
    return data


def document(path: str, data: bytes) -> dict[str, Any]:
    """What `data`, the TOML of the file at `path`, says.

    Raises:
        SettingsError: it is no TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]
    try:
        said: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{_name(path)}: is not valid TOML: {error}") from None
    except RecursionError:
        raise SettingsError(f"{_name(path)}: is nested too deeply to be read") from None
    return said


def _table(document: dict[str, Any], path: str) -> Any:
    """What stands for ``[tool.gradguard]``, however it is written; None where nothing does."""
    tool = document.get("tool", {})
    if not isinstance(tool, dict):
        raise SettingsError(f"{_name(path)}: [tool] must be a table")
    return tool.get("gradguard")


def _name(path: str) -> str:
    from pytest_gradguard.findings import display_path

    return display_path(path)


def parse(table: Any, where: str) -> Settings:
    """The settings that `table` holds; `where` names its file in errors.

    Raises:
        SettingsError: an unknown key, an unknown code, or a value of the wrong kind.
    """
    path, where = where, _name(where)
    if not isinstance(table, dict):
        raise SettingsError(f"{where}: [tool.gradguard] must be a table")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            meant = did_you_mean(key, _KEYS)
            raise SettingsError(
                f"{where}: unknown key {key!r} in [tool.gradguard]{meant} "
                f"(allowed: {', '.join(_KEYS)})"
            )
        name = key.replace("-", "_")
        if key in _LISTS:
            values[name] = _strings(value, key, where)
            if key in _NAMES:
                _dotted(values[name], key, where)
        elif key == "per-file-ignores":
            if not isinstance(value, dict):
                raise SettingsError(f"{where}: per-file-ignores must be a table of lists")
            values[name] = tuple(
                (pattern, _strings(codes, f"per-file-ignores.{pattern}", where))
                for pattern, codes in value.items()
            )
        elif key == "models":
            values[name] = _models(value, where)
        elif key == "target-version":
            try:
                values[name] = python_version(value)
            except ValueError as error:
                raise SettingsError(f"{where}: target-version {error}") from None
        else:
            allowed = _CHOICES[key]
            if value not in allowed:
                raise SettingsError(
                    f"{where}: {key} must be one of {', '.join(allowed)}, not {value!r}"
                )
            values[name] = value
    settings = Settings(root=os.path.dirname(os.path.abspath(path)), **values)
    _check_codes(settings, where)
    return settings


def python_version(text: Any) -> tuple[int, int]:
    """The version that `text`, such as ``3.14``, stands for.

    Raises:
        ValueError: it stands for none.
    """
    match = re.fullmatch(r"3\.(\d{1,3})", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'must be a Python version such as "3.12", not {text!r}')
    return 3, int(match.group(1))


def _models(value: Any, where: str) -> tuple[Model, ...]:
    """The tables of ``[[tool.gradguard.models]]``."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SettingsError(f"{where}: models must be tables, [[tool.gradguard.models]]")
    return tuple(_model(table, f"{where}: [[tool.gradguard.models]]") for table in value)


def _model(table: dict[str, Any], where: str) -> Model:
    keys = ("name", *_MODEL, "methods")
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key == "name":
            names = [value] if isinstance(value, str) else value
            found[key] = _dotted(_strings(names, "name", where), "name", where)
        elif key in _MODEL:
            if value not in _MODEL[key]:
                allowed = ", ".join(_MODEL[key])
                raise SettingsError(f"{where}: {key} must be one of {allowed}, not {value!r}")
            found[key] = value
        elif key == "methods":
            if not isinstance(value, dict) or not all(like in _METHODS for like in value.values()):
                raise SettingsError(
                    f"{where}: methods must be a table whose values are among {', '.join(_METHODS)}"
                )
            found[key] = tuple(value.items())
        else:
            meant = did_you_mean(key, keys)
            raise SettingsError(f"{where}: unknown key {key!r}{meant} (allowed: {', '.join(keys)})")
    for key in ("name", "does"):
        if key not in found:
            raise SettingsError(f"{where}: {key} is missing")
    return tuple(found.items())


def _dotted(names: tuple[str, ...], key: str, where: str) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name):
            said = f'{key} must be dotted, such as "mylib.Pool", not {name!r}'
            raise SettingsError(f"{where}: {said}")
    return names


def _strings(value: Any, key: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SettingsError(f"{where}: {key} must be a list of strings")
    return tuple(value)


def _check_codes(settings: Settings, where: str) -> None:
    lists = {
        "select": settings.select or (),
        "extend-select": settings.extend_select,
        "ignore": settings.ignore,
    }
    lists |= {f"per-file-ignores.{pattern}": codes for pattern, codes in settings.per_file_ignores}
    if not any(lists.values()):
        return
    from pytest_gradguard.pitfalls import expand

    for key, codes in lists.items():
        try:
            expand(codes)
        except ValueError as error:
            raise SettingsError(f"{where}: {key}: {error}") from None
