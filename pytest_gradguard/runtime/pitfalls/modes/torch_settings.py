"""GG301: torch settings of the caller's process that a worker process lacks.

Reported if the worker has torch's default instead, the tasks did something that depends on it, and
their code does not choose the setting itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from pytest_gradguard.findings import Severity
from pytest_gradguard.runtime.frameworks.torch import settings
from pytest_gradguard.runtime.kernel import used_globals
from pytest_gradguard.runtime.kernel.evidence import names
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.tasks import Task, mentions, task_of
from pytest_gradguard.runtime.pitfalls.modes import gg301
from pytest_gradguard.runtime.pitfalls.modes.gg301 import SETTINGS


class Lacking(NamedTuple):
    """What tasks of a batch did without a setting, picklable.

    Attributes:
        setting: its name.
        value: the worker's.
        function: the first torch function that depends on it.
        task: the function of the batch's first task.
        matters: it certainly depends on the setting; otherwise it may on other machines or inputs.
    """

    setting: str
    value: str
    function: str
    task: Task
    matters: bool = True


# -- in the parent ---------------------------------------------------------------------------------


def ask(call: Any) -> dict[str, str] | None:
    """Return the settings of this process that are not torch's defaults."""
    return settings.changed() or None


def start(call: Any, task: Any, forked: bool) -> dict[str, str] | None:
    """As `ask`, for a process that the program starts; a forked one has inherited them."""
    asked: dict[str, str] | None = call.asked.get(SETTINGS)
    return None if forked else asked


def on_note(call: Any, note: list[Lacking]) -> None:
    """Report, in the parent, what tasks did without settings of the caller."""
    asked = call.asked[SETTINGS]
    for lacking in note:
        about = settings.SETTINGS[lacking.setting]
        if call.kind.loads_data and about.computes:
            continue  # the model computes in the caller
        kind = (SETTINGS, lacking.matters)
        evidence = gg301.Evidence.of(call, _message, about=kind, settings={})
        if evidence is None:
            return
        if not lacking.matters:
            evidence.severity = Severity.INFO
        value = asked[lacking.setting]
        if lacking.setting not in evidence.details["settings"]:
            evidence.details["settings"][lacking.setting] = {
                "caller": value,
                "worker": lacking.value,
                "function": lacking.function,
            }
            code = about.code.format(value)
            known = evidence.details.setdefault("code", [])
            known.append(code)
            there = "in the function of the process, too"
            if not call.starts:
                there = "in the worker function too, or in the initializer of the pool"
            evidence.advice = f"Run {names(known)} {there}."
        evidence.add(lacking.task, f"`{lacking.task.name}` calls `{lacking.function}`")


def _message(evidence: gg301.Evidence) -> str:
    workers = f"{evidence.backend} workers"
    return (
        "; ".join(
            f"{name} is `{about['caller']}` in the caller and `{about['worker']}` in {workers}: "
            f"`{evidence.first.name}` calls `{about['function']}` there"
            for name, about in evidence.details["settings"].items()
        )
        + "."
    )


# -- in the worker ---------------------------------------------------------------------------------


def begin(asked: dict[str, str], process: bool) -> After | None:
    """Watch the tasks of a batch in a worker process."""
    missing = settings.missing(asked) if process else []
    if not missing:
        return None
    watch = settings.Watch(missing)

    def after(items: Any, results: Any, error: BaseException | None) -> list[Lacking] | None:
        used, may_use = watch.end()
        found = []
        functions = [one for item in items for one in used_globals.uses_of(item[0]).functions]
        for name in missing:
            about = settings.SETTINGS[name]
            used_here = about.has_effect is None or about.has_effect(asked[name])
            matters = (used.get(name) if used_here else None) or _asked_for(functions, about)
            function = matters or used.get(name) or may_use.get(name)
            if function and not _decides(functions, about, asked[name]):
                there = about.shown(about.defaults[0])
                task = task_of(*items[0])
                found.append(Lacking(name, there, function, task, matters is not None))
        return found or None

    return after


def _asked_for(functions: list[Any], about: settings.Setting) -> str | None:
    """The torch function by which tasks request a setting that is still the default."""
    if not about.is_default():
        return None
    return next((name for name in about.asks if _mention(functions, {name})), None)


def _decides(functions: list[Any], about: settings.Setting, wanted: str) -> bool:
    """Whether the code of tasks chooses a setting itself, or the dtype of their tensors."""
    words = about.names
    if not about.computes:
        words |= settings.spellings(str(wanted))
    return _mention(functions, words)


def _mention(functions: list[Any], words: Collection[str]) -> bool:
    return any(mentions(one, frozenset(words)) for one in functions)
