"""Observations of one pitfall at one place, and the finding that they make.

Findings are built on demand: until then an observation costs a count and, for the first few
objects, a description. Each check defines its messages in a class of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from pytest_gradguard import pitfalls
from pytest_gradguard.details import Details, Direction, FindingDetails, Sample
from pytest_gradguard.findings import Finding, Lane, Location, Reference, Severity, TraceStep
from pytest_gradguard.runtime.kernel import frameworks
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.framework import Framework
from pytest_gradguard.runtime.kernel.locks import Lock
from pytest_gradguard.runtime.kernel.quoting import Quoted, quoted
from pytest_gradguard.runtime.kernel.tasks import Task

if TYPE_CHECKING:
    from typing_extensions import Unpack

SAMPLES = 5
"""How many objects, tasks or places a finding describes; the others are counted."""
OTHER_ARRAYS = "other arrays"
"""The case (`Pitfall.cases`) for arrays of frameworks that are not gradguard's own."""
NOWHERE = Location(path="<unknown>", line=1)
_UNKNOWN: FindingDetails = {
    "framework": None,
    "direction": None,
    "object": None,
    "type": None,
    "shape": None,
    "dtype": None,
    "device": None,
}

_Kind = TypeVar("_Kind", bound="Evidence")


class Object(NamedTuple):
    """A tensor that was transferred, described in plain values so that it can be pickled."""

    path: str
    task: Task
    description: Details
    history: str | None
    plain: bool
    parameter: str | None = None

    @property
    def framework(self) -> Framework:
        """The framework of the object."""
        return frameworks.named(self.description["framework"])

    def label(self) -> str:
        """Type, shape, dtype, device and history, as messages show them."""
        about = self.description
        history = f", made by {self.history}" if self.history else ""
        shape = f"{about['type']} of shape {about['shape']}"
        return f"{shape}, {about['dtype']} on {about['device']}{history}"


class Evidence:
    """The observations of one pitfall at one place.

    Attributes:
        code: the pitfall.
        site: the user's line.
        backend: the kind of workers.
        count: how often it was observed; without any, there is no finding.
        samples: the first few objects of which it was observed.
        details: the finding's details.
        severity, advice: those of the finding, if not the pitfall's.
        case: the case of the pitfall's advice (`Pitfall.cases`), if any.
    """

    code: ClassVar[str]
    severity: Severity | None = None
    advice: str | None = None
    case = ""

    def __init__(self, site: Site | None, backend: str, **details: Unpack[Details]) -> None:
        self.site = site
        self.backend = backend
        self.count = 0
        self.samples: list[Object] = []
        self.details = details
        self._steps: list[TraceStep] = []
        self._quoted: dict[int, Quoted] = {}
        self._lock = Lock()

    @classmethod
    def of(
        cls: type[_Kind], call: Any, *given: Any, about: object = None, **details: Unpack[Details]
    ) -> _Kind | None:
        """The evidence against `call`, or None if that is allowed or left out.

        Args:
            call: the parallel call.
            given: further arguments of this kind of evidence.
            about: distinguishes findings of one code at one line.
            details: the finding's details; the first call of the place decides.
        """
        if cls.code in call.dropped:
            return None
        key = (cls.code, call.site and call.site.key, call.backend, about)
        evidence = call.collector.evidence(
            key, lambda: cls(call.site, call.backend, *given, **details)
        )
        assert isinstance(evidence, cls)
        evidence.advice = evidence.advice or call.kind.advice.get(cls.code)
        evidence.case = evidence.case or call.case(cls.code)
        call.note(evidence)
        return evidence

    @property
    def wants_sample(self) -> bool:
        """Whether a description of a further object would be kept."""
        return len(self.samples) < SAMPLES

    def keep(self, sample: Object) -> None:
        """Keep an object as a sample while there are few, and none like it."""
        known = {(kept.path, kept.task.name) for kept in self.samples}
        if self.wants_sample and (sample.path, sample.task.name) not in known:
            self.samples.append(sample)

    def quoted(self, sample: Object) -> Quoted:
        """The name of one of the samples."""
        known = self._quoted.get(id(sample))
        if known is None:
            known = quoted(self.site, sample.path, sample.parameter, sample.task.name)
            self._quoted[id(sample)] = known
        return known

    def tensors(self) -> list[Sample]:
        """The samples in plain values: name, direction and description."""
        return [
            {
                "name": self.quoted(sample).name,
                "object": sample.path,
                "direction": direction(sample.path),
                "function": sample.task.name,
                "parameter": sample.parameter,
                "history": sample.history,
                "type": sample.description.get("type"),
                "shape": sample.description.get("shape"),
                "dtype": sample.description.get("dtype"),
                "device": sample.description.get("device"),
            }
            for sample in self.samples
        ]

    def add_step(
        self, text: str, path: str | None, line: int | None, lane: Lane | None = "worker"
    ) -> None:
        """Add a step at a line, if known, while there are few steps."""
        if path is not None and line is not None and len(self._steps) < SAMPLES:
            step = TraceStep(path, line, text, lane=lane)
            if step not in self._steps:
                self._steps.append(step)

    def message(self) -> str:
        """The finding's message."""
        raise NotImplementedError

    def trace(self) -> Sequence[TraceStep]:
        """The steps that led to it."""
        return self._steps

    def about(self) -> Details:
        """The details of the finding."""
        return self.details

    def explained(self) -> Iterable[Reference]:
        """The findings that this one explains."""
        return ()

    def build(self) -> Finding | None:
        """The current finding; None if there is none."""
        with self._lock:
            if not self.count:
                return None
            pitfall = pitfalls.get(self.code)
            return Finding(
                code=self.code,
                name=pitfall.name,
                severity=pitfall.severity if self.severity is None else self.severity,
                origin="runtime",
                message=self.message(),
                fix=self.advice or pitfall.advice_for(self.case),
                location=NOWHERE if self.site is None else self.site.location(),
                trace=tuple(self.trace()),
                explains=tuple(self.explained()),
                count=self.count,
                details=details_of(self.about(), self.backend),
            )


class TaskEvidence(Evidence):
    """Observed actions of the tasks of one parallel call.

    Attributes:
        first: the first observed task.
    """

    first: Task

    def add(self, task: Task, text: str, path: str | None = None, line: int | None = None) -> None:
        """Count one more task, and add its action to the trace.

        Args:
            task: the function that ran.
            text: its action.
            path, line: the place; by default that of its definition.
        """
        with self._lock:
            if not self.count:
                self.first = task
            self.count += 1
            if path is None or line is None:
                path, line = task.path, task.line
            self.add_step(text, path, line)

    def about(self) -> Details:
        return {"object": self.first.name, "function": self.first.name, **self.details}


class TransferEvidence(Evidence):
    """Objects of one kind that one call's pickling sent to its workers, or back.

    Attributes:
        plain: one of them was passed or returned directly, or in plain containers.
        identities: the ids of the objects in this process: several tasks may get one object.
        answered: for how many the workers have returned the gradient.
    """

    def __init__(self, site: Site | None, backend: str, **details: Unpack[Details]) -> None:
        super().__init__(site, backend, **details)
        self.plain = False
        self.identities: set[int] = set()
        self.answered = 0
        self._losses: dict[int, Evidence] = {}

    def add(self, sample: Object, plain: bool = True) -> None:
        """Count one more object; keep it as a sample while there are few."""
        with self._lock:
            self.plain = self.plain or plain
            self.keep(sample)
            self.count += 1

    def add_more(self, count: int) -> None:
        """Count `count` more objects, undescribed."""
        with self._lock:
            self.count += count

    @property
    def objects(self) -> int:
        """How many objects they are, each counted once if known."""
        return len(self.identities) or self.count

    def explains(self, loss: Evidence) -> None:
        """Record that these objects explain the lost gradient `loss`."""
        with self._lock:
            self._losses[id(loss)] = loss

    def explained(self) -> Iterable[Reference]:
        for loss in self._losses.values():
            if loss.count:
                where = NOWHERE if loss.site is None else loss.site.location()
                yield Reference(loss.code, where.path, where.line, where.column)

    def build(self) -> Finding | None:
        # `.detach()` and `.cpu()` are torch's: arrays of another package may lack them.
        for sample in self.samples[:1]:
            mine = sample.framework
            case = mine.name if frameworks.is_ours(mine) else OTHER_ARRAYS
            if case in pitfalls.get(self.code).cases:
                self.case = case
        return super().build()

    def name_of(self, path: str) -> str | None:
        """The name of the object at `path`, if it is one of the samples."""
        for sample in list(self.samples):
            if sample.path == path:
                return self.quoted(sample).name
        return None

    def described(self, sample: Object, more: str = "") -> str:
        """An object by its name, with its description in brackets."""
        name, role = self.quoted(sample)
        return f"{name} ({role}{', ' if role else ''}{sample.label()}{more})"

    def trace(self) -> Sequence[TraceStep]:
        return steps_of(self.samples)

    def about(self) -> Details:
        first = self.samples[0]
        return {
            **first.description,
            "direction": direction(first.path),
            "object": first.path,
            "subject": str(self.quoted(first)),
            "objects": [sample.path for sample in self.samples],
            "tensors": self.tensors(),
            "history": first.history,
            "function": first.task.name,
        }


def details_of(observed: Details, backend: str | None) -> FindingDetails:
    """The details of a finding: defaults for all keys, and the observed ones."""
    details: FindingDetails = {**_UNKNOWN}
    details.update(observed)  # type: ignore[typeddict-item]
    details["backend"] = backend
    return details


def finding_of(
    code: str,
    message: str,
    observed: Details,
    *,
    site: Site | None,
    fix: str | None = None,
    trace: tuple[TraceStep, ...] = (),
) -> Finding:
    """The finding of a check that the program itself requests.

    Args:
        code: the check's.
        message: its message.
        observed: its details.
        site: the line to blame.
        fix: the fix; by default the catalogue's.
        trace: the steps that led to it.
    """
    pitfall = pitfalls.get(code)
    return Finding(
        code=code,
        name=pitfall.name,
        severity=pitfall.severity,
        origin="runtime",
        message=message,
        fix=fix or pitfall.advice,
        location=NOWHERE if site is None else site.location(),
        trace=trace,
        details=details_of(observed, None),
    )


# -- words used by several checks -----------------------------------------------------------------


def direction(path: str) -> Direction:
    """``argument``, ``capture`` or ``result``: how the object at `path` travelled."""
    if path.startswith("result"):
        return "result"
    return "argument" if path.startswith(("args[", "kwargs[", "args", "kwargs")) else "capture"


def times(count: int, noun: str) -> str:
    """`count` with its noun in the right number: ``1 task``, ``2 tasks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def names(named: Iterable[str]) -> str:
    """Names as a sentence lists them: the first few, and how many more."""
    every = list(named)
    shown = [name if "`" in name else f"`{name}`" for name in every[:SAMPLES]]
    if len(every) > SAMPLES:
        shown.append(f"{len(every) - SAMPLES} more")
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def steps_of(samples: Iterable[Object]) -> list[TraceStep]:
    """The tasks that the samples went to, or came from."""
    steps: list[TraceStep] = []
    for sample in samples:
        task = sample.task
        if task.path is not None and task.line is not None:
            step = TraceStep(task.path, task.line, _travels(sample), lane="worker")
            if step not in steps:
                steps.append(step)
    return steps


def _travels(sample: Object) -> str:
    how = direction(sample.path)
    task = f"`{sample.task.name}`"
    if how == "result":
        return f"{task} returns " + ("it" if sample.path == "result" else f"it as `{sample.path}`")
    if sample.parameter is not None:
        return f"{task} receives it as `{sample.parameter}`"
    return f"{task} {'captures' if how == 'capture' else 'receives'} it"
