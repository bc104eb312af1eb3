"""GG301: derivatives of the caller that do not extend to where the tasks run.

A transform of `torch.func` belongs to the thread that entered it, and the tangents of forward mode
are not pickled. Reported once the program takes the derivative of what tasks computed without it,
and in addition to torch's error where it refuses.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pytest_gradguard.findings import Severity
from pytest_gradguard.runtime.frameworks.torch import transforms
from pytest_gradguard.runtime.frameworks.torch.following import tensors_in
from pytest_gradguard.runtime.kernel import calls, collector, locate, pulling, shipment
from pytest_gradguard.runtime.kernel.evidence import direction
from pytest_gradguard.runtime.kernel.probes import After
from pytest_gradguard.runtime.kernel.state import dropped_at_end
from pytest_gradguard.runtime.kernel.tasks import GENERATOR, Task, roots_of, task_of
from pytest_gradguard.runtime.pitfalls.modes import gg301
from pytest_gradguard.runtime.pitfalls.modes.gg301 import TRANSFORMS

_NAMES = {
    transforms.GRAD: "`torch.func.grad` or `vjp`",
    transforms.JVP: "`torch.func.jvp`",
    transforms.VMAP: "`torch.vmap`",
    transforms.TANGENT: "forward mode",
}
_REFUSAL = re.compile(r"INTERNAL ASSERT FAILED.*functorch|escaped.*functorch", re.DOTALL)
"""Torch's errors for a tensor of a transform that this thread lacks or has entered itself."""
_REFUSAL_OF_VMAP = "being vmapped"

_losses: weakref.WeakValueDictionary[int, transforms.Loss] = dropped_at_end(
    weakref.WeakValueDictionary()
)


class Asked(NamedTuple):
    """The transforms active in the calling thread, picklable.

    Attributes:
        token: the call.
        levels: its transforms.
        forward: forward mode is active.
        given: the ids of the tensors of these transforms in a batch for threads.
    """

    token: int
    levels: transforms.Levels
    forward: bool
    given: frozenset[int] = frozenset()


class Lacking(NamedTuple):
    """A task that computed with tensors that lack a derivative.

    Attributes:
        task: the function that ran.
        object: the path to the first of them, if it is among the task's arguments.
        kind: the transform without which torch refused; None: it raised nothing.
        results: in a worker process, the affected results themselves: they are pickled together.
    """

    task: Task
    object: str
    kind: str | None = None
    results: tuple[Any, ...] = ()


def ask(call: Any) -> tuple[Any, ...] | None:
    """Return the transforms of the calling thread, and follow its own computation from now on."""
    if transforms.none_active():
        return None
    call.remembered[TRANSFORMS] = transforms.follow()
    levels = transforms.levels()
    call.in_transform = bool(levels)
    return tuple(Asked(call.token, levels, transforms.forward_mode()))


def ship(call: Any, items: Any) -> tuple[Any, ...] | None:
    """As `ask`, for a batch: the levels of a transform inside a task may be equal."""
    asked = Asked(*call.asked[TRANSFORMS])
    if not asked.levels:
        return None
    given = locate.find(roots_of(items), transforms.is_wrapped)
    return tuple(asked._replace(given=frozenset(given)))


def begin(asked: tuple[Any, ...], process: bool) -> After | None:
    """Follow what the tasks of a batch compute."""
    known = Asked(*asked)
    if process:
        return _in_process() if known.forward else None
    call = calls.by_token(known.token)
    return None if call is None or not known.levels else _in_thread(call, known)


def _in_thread(call: Any, asked: Asked) -> After:
    loss = _loss_of(call)
    watch = transforms.Watch(loss, asked.levels, asked.given)

    def after(items: Any, results: Any, error: BaseException | None) -> Lacking | None:
        used = watch.end()
        if error is None and used:
            _count(loss, *_given(items, lambda item: id(item) in used))
        if not isinstance(error, RuntimeError) or not _REFUSAL.search(str(error)):
            return None
        task, path = _given(items, transforms.is_wrapped)
        kind = transforms.VMAP if _REFUSAL_OF_VMAP in str(error) else asked.levels[-1][1]
        return Lacking(task, path, kind) if path else None

    return after


def _in_process() -> After | None:
    loss = transforms.arrived()
    if loss is None:
        return None
    watch = transforms.Watch(loss)

    def after(items: Any, results: Any, error: BaseException | None) -> Lacking | None:
        watch.end()
        lacking = [one for one in tensors_in(results) if transforms.losses_of(one)]
        if not lacking:
            return None
        task, path = _given(items, lambda item: any(item is one for one in loss.duals))
        return Lacking(task, path, results=tuple(lacking))

    return after


def _given(items: Any, wanted: Callable[[Any], bool]) -> tuple[Task, str]:
    """The first task with a wanted tensor, and the path to it; otherwise the first task."""
    for path in locate.find(roots_of(items), wanted).values():
        index, _, path = path.partition("|")
        return task_of(items[int(index)][0]), path.lstrip(".")
    return task_of(*items[0]), ""


def on_note(call: Any, note: Lacking) -> None:
    """Report what torch has refused; follow results that came without their tangents."""
    if note.kind is not None:
        _report(call, note.kind, {(note.task, note.object): 1}, _fails)
        return
    loss = _loss_of(call)
    _count(loss, note.task, note.object)
    for result in note.results:
        if result is None:  # they came back apart from this note
            continue
        loss.of(transforms.TANGENT, result)
        transforms.mark(result, frozenset((loss,)))


def _shipped(call: Any, items: Any, tensor: Any, reduction: Any) -> Any:
    """The `reduction` of a tensor whose tangent is not pickled; a refused one is reported."""
    if isinstance(reduction, tuple):
        rebuild, arguments, *rest = reduction
        return (transforms.without_tangent, (rebuild, arguments), *rest)
    if reduction is None:
        asked = call.asked.get(TRANSFORMS)
        kind = asked and dict(Asked(*asked).levels).get(transforms.level_of(tensor))
        if kind:
            given = _given(items, lambda item: item is tensor)
            _report(call, kind, {given: 1}, _cannot_be_pickled)
    return reduction


shipment.differentiated.append(_shipped)


def wrap_tasks(call: Any, tasks: Any) -> Any:
    """Follow `tasks` where joblib pulls them from a thread other than the caller's."""
    levels = Asked(*call.asked[TRANSFORMS]).levels

    def begin() -> pulling.Ending | None:
        if not levels:
            return None
        loss = _loss_of(call)
        watch = transforms.Watch(loss, levels)

        def end() -> None:
            if watch.end():
                _count(loss, GENERATOR, "")

        return end

    return pulling.wrap_tasks(tasks, begin)


def _loss_of(call: Any) -> transforms.Loss:
    """The derivative that the tasks of `call` lack; it refers to the call, not vice versa."""
    loss = _losses.get(call.token)
    if loss is None:
        made = transforms.Loss(call, _missing, call.remembered[TRANSFORMS])
        loss = _losses.setdefault(call.token, made)
    return loss


def _count(loss: transforms.Loss, task: Task, path: str) -> None:
    loss.tasks[task, path] = loss.tasks.get((task, path), 0) + 1


def _missing(loss: transforms.Loss, kind: str) -> None:
    """Report that the program takes a derivative which tasks computed without."""
    says = _goes_without_tangent if kind == transforms.TANGENT else _is_missing
    evidence = _report(loss.call, kind, loss.tasks, says)
    if evidence is not None:
        collector.announce(loss.call.collector, [evidence])


def _report(
    call: Any,
    kind: str,
    tasks: Mapping[tuple[Task, str], int],
    says: Callable[[str, str, gg301.Evidence], str],
) -> gg301.Evidence | None:
    if collector.innermost() is None:
        return None

    def message(evidence: gg301.Evidence) -> str:
        given = evidence.details.get("object")
        return says(_NAMES[kind], f"`{given}`" if given else "a tensor", evidence)

    about = (kind, says.__name__)
    mode = _NAMES[kind]
    evidence = gg301.Evidence.of(call, message, about=about, mode=mode)
    if evidence is None:
        return None
    evidence.severity = Severity.ERROR
    evidence.case = "forward mode" if kind == transforms.TANGENT else "transform"
    for (task, path), count in list(tasks.items()):
        if path and not evidence.count:
            evidence.details.update({"object": path, "direction": direction(path)})
        for _ in range(count):
            evidence.add(task, f"`{task.name}` uses `{path}`" if path else f"`{task.name}` runs")
    return evidence


def _is_missing(name: str, given: str, evidence: gg301.Evidence) -> str:
    lacks = "tangent" if name == _NAMES[transforms.JVP] else "gradient"
    who = evidence.first.name
    if evidence.first == GENERATOR:
        return (
            f"{name} is active in the calling thread only, and joblib pulls {who} from other "
            f"threads after the first few: the {lacks} lacks what is computed there."
        )
    return (
        f"{name} is active in the calling thread only: `{who}` uses {given} as a constant in "
        f"{evidence.backend} workers, and the {lacks} lacks what `{who}` computes."
    )


def _goes_without_tangent(name: str, given: str, evidence: gg301.Evidence) -> str:
    return (
        f"{given} goes to {evidence.backend} workers without its tangent, which is not pickled: "
        f"`{evidence.first.name}` computes without it, and the tangent of the result is missing."
    )


def _fails(name: str, given: str, evidence: gg301.Evidence) -> str:
    return (
        f"{given} belongs to {name}, which is active in the calling thread only: "
        f"`{evidence.first.name}` fails with it in {evidence.backend} workers."
    )


def _cannot_be_pickled(name: str, given: str, evidence: gg301.Evidence) -> str:
    return (
        f"{given} belongs to {name}, which is active in the calling thread only: torch cannot "
        f"pickle it for the {evidence.backend} workers that run `{evidence.first.name}`."
    )
