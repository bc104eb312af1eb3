"""GG105, where tasks run: which variables they read, and which results depend on these.

A tape of ours records what the tasks of a batch compute. It shows through which result a gradient
would have reached a variable or a watched tensor if the user's tape had recorded there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.tasks import parameter_of, roots_of, task_of
from pytest_gradguard.runtime.pitfalls.tapes import own, values
from pytest_gradguard.runtime.pitfalls.tapes.notes import Behind, Flow, Key, Made, Note, Source
from pytest_gradguard.runtime.pitfalls.tapes.own import OwnTape
from pytest_gradguard.runtime.pitfalls.tapes.values import Value

_LIMIT = 1_000
"""How many objects in the results of a batch are searched for tensors."""

Asked = tuple[int, Sequence[tuple[int, Any]], Sequence[tuple[tuple[int, ...], Any]]]
"""The parent's request for a batch, in plain tuples, so that no worker needs this module.

For how many results gradients through them are computed; numbers of watched tensors, with the
tensors; ids of variables in the parent, with their holders. They are pickled with the tasks, so
that they arrive as the tasks' own objects.
"""


def key_of(variable: Any) -> Key:
    """A key that a variable shares with its copy in another process."""
    return variable.name.rpartition("/")[2], tuple(variable.shape), variable.dtype.name


def number_of(tensor: Any) -> int:
    """A tensor's number, which TensorFlow never reuses; not positive, unlike ids."""
    return -int(tensor._id)


class Inside:
    """Records what the tasks of one batch compute in this thread."""

    def __init__(self, asked: Asked, process: bool) -> None:
        self._exact, given, holders = asked
        self._process = process
        self._given = [(number, one) for number, one in given if hasattr(one, "numpy")]
        self._known = {
            id(variable): number
            for numbers, holder in holders
            for number, (_, variable) in zip(
                numbers, values.trainables_of(Value("", holder)), strict=False
            )
        }
        own.listen(own.TASKS)
        self._tape = OwnTape(automatic=True)
        self._tape.watch([one for _, one in self._given])
        self._tape.push()

    def end(self, items: Any, results: Any) -> Note | None:
        """Return what the tasks did; `results` is None if one of them failed."""
        self._tape.pop()
        read = list(self._tape.variables())
        if not read and not self._given:
            return None
        made = []
        sources = [*((self._source(one), one.handle) for one in read), *self._given]
        found: Behind = {}
        for value in self._handed_over(items, results or ()):
            behind = self._behind(value.item, sources, found)
            if behind:
                index, _, path = value.path.partition("|")
                made.append(Made(value.item, behind, sample(path, value.item, items[int(index)])))
        reader = None
        if read:
            reader = sample(read[0].name.partition(":")[0], read[0], items[0])
        return Note([*map(self._source, read)] if self._process else read, reader, made)

    def _source(self, variable: Any) -> Source:
        if not self._process:
            return id(variable)
        return self._known.get(id(variable)) or key_of(variable)

    def _handed_over(self, items: Any, results: Any) -> Iterator[Value]:
        """The eager tensors that the tasks return, or store where threads share them."""
        roots = [(f"{index}|result", result) for index, result in enumerate(results)]
        known = set() if self._process else {id(one) for _, one in self._given}
        found = values.values_in(roots, limit=_LIMIT)
        if not self._process:
            found += values.values_in(_shared(items, results), limit=_LIMIT)
        for value in found:
            if value.tensor and hasattr(value.item, "numpy") and id(value.item) not in known:
                known.add(id(value.item))
                yield value

    def _behind(self, tensor: Any, sources: Sequence[tuple[Source, Any]], found: Behind) -> Behind:
        """The sources behind a tensor; past the exact ones, those of the exact ones."""
        if not self._tape.sees([tensor]):
            return {}
        self._exact -= 1
        if self._exact < 0:
            return dict(found) or dict.fromkeys((source for source, _ in sources), Flow.SOME)
        try:
            flows = self._tape.flows([tensor], [one for _, one in sources])
        except own.NoGradient:
            return {}
        behind = {source: flow for (source, _), flow in zip(sources, flows, strict=True) if flow}
        add(found, behind)
        return behind


def _shared(items: Any, results: Any) -> Iterator[tuple[str, Any]]:
    """Objects of this process in which tasks may store their results."""
    yield from roots_of(items)
    if all(result is None for result in results):
        for index, (function, _, _) in enumerate(items):
            for path, value in values.globals_of(function, written=True):
                yield f"{index}|{path}", value


def add(found: Behind, more: Behind, through: Flow = Flow.SOME) -> None:
    """Add sources that a gradient reaches by another path, which passes at most `through`."""
    for source, flow in more.items():
        found[source] = max(found.get(source, Flow.NONE), min(flow, through))


def sample(path: str, item: Any, task: Any) -> Object:
    """Describe an object that a task got, read or made."""
    path = path.lstrip(".") or "self"
    return Object(
        path=path,
        task=task_of(task[0]),
        description=values.describe(item),
        history=None,
        plain=True,
        parameter=parameter_of(task[0], path),
    )
