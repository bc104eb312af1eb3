"""``--show-settings``: what holds for the files, from the command line, a table or by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gradguard_lint.project.target import Targets
from gradguard_lint.rules import codes
from pytest_gradguard.cli.words import counted
from pytest_gradguard.findings import display_path
from pytest_gradguard.platforms import HERE

if TYPE_CHECKING:
    from gradguard_lint.outcome import Outcome
    from gradguard_lint.project.configuration import Configuration
    from gradguard_lint.run import Request
    from pytest_gradguard.cli.lint.selection import Selection

_SHOWN = ("exclude", "per_file_ignores", "delayed", "parallel", "models", "stubs")


def described(outcome: Outcome, request: Request, selection: Selection) -> Iterator[str]:
    """Yield the lines for each table that holds for one of the files, as TOML with comments."""
    targets = Targets()
    for configuration in outcome.configurations:
        files = [one for one in outcome.contents if request.configurations.of(one) is configuration]
        if files:
            yield from _table(configuration, files, request, selection, targets)


def _table(
    configuration: Configuration,
    files: list[str],
    request: Request,
    selection: Selection,
    targets: Targets,
) -> Iterator[str]:
    settings = configuration.settings
    path = configuration.path
    source = display_path(path) if path else "no [tool.gradguard] table"
    yield f"# {source}: {counted(len(files), 'file')}"
    shown = selection.codes(settings)
    yield f"select = {_toml(sorted(shown) if len(shown) < len(codes()) else ('GG',))}"
    yield f"min-severity = {_toml(selection.lowest(settings))}"
    target = request.target_version or settings.target_version or targets.of(files[0])
    if target is not None:
        yield f"target-version = {_toml('{}.{}'.format(*target))}"
    start = request.start_method or settings.start_method or HERE.start_method(target)
    yield f"start-method = {_toml(start)}"
    for name in _SHOWN:
        if value := getattr(settings, name):
            yield f"{name.replace('_', '-')} = {_toml(value)}"


def _toml(value: Any) -> str:
    """`value` as it would stand in a table."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if _is_table(value):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(item)}' for key, item in value)} }}"
    return f"[{', '.join(map(_toml, value))}]"


def _is_table(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) for item in value
    )
