"""A watch of any framework: its options, its begin and end, and its findings."""

from __future__ import annotations

import contextlib
import fnmatch
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from pytest_gradguard.details import Details
from pytest_gradguard.disabled import is_disabled
from pytest_gradguard.findings import Finding
from pytest_gradguard.gradients.reasons import Reason
from pytest_gradguard.gradients.report import Missing, findings_of, shown
from pytest_gradguard.gradients.targets import Item, items_of, written_at
from pytest_gradguard.gradients.watched import FrameworkWatch
from pytest_gradguard.messages import GradGuardError, GradGuardWarning
from pytest_gradguard.reports import printable
from pytest_gradguard.runtime.frameworks.torch import engine, steps
from pytest_gradguard.runtime.kernel import callsite, collector, watching
from pytest_gradguard.runtime.kernel.announcing import emit
from pytest_gradguard.runtime.kernel.faults import attempt, checked, fault, theirs_only

Part = FrameworkWatch[Any, Any]


class Watch:
    """The watched tensors of one call of `watch_gradients`; a context manager.

    Args:
        watched, allow_none, finite, nonzero, steps: see `watch_gradients`.
        raises: raise findings after `steps` steps.
        permitted: report no findings, as inside an `allow` block for GG104.

    Attributes:
        close: ends the watch without a verdict.
        label: the watched expression in the source; empty if it is not a plain name.
        judged: the verdict was given after `steps` steps, before the end.
        reasons: after the end, the reason for every name without a gradient.
        findings: after the end, the GG104 findings.
    """

    def __init__(
        self,
        watched: Any,
        *,
        allow_none: str | Iterable[str] = (),
        finite: bool = True,
        nonzero: bool = False,
        steps: int | None = None,
        raises: bool = True,
        permitted: bool = False,
    ) -> None:
        __tracebackhide__ = True
        self._permitted = permitted
        self._allowed_here = False
        frame = attempt(callsite.user_frame)
        self._site = None if frame is None else attempt(callsite.site_of, frame)
        self._allow = patterns(allow_none)
        self._finite = switch("finite", finite)
        self._nonzero = switch("nonzero", nonzero)
        self._steps = None if steps is None else step_count(steps)
        self._raises = raises
        self._open = False
        self.judged = False
        self._failed = False
        # Runs every callback, even if a part of the guard fails.
        self._ending = contextlib.ExitStack()
        self.close: Callable[[], None] = self._ending.close
        self._listener = collector.Collector()
        items = items_of(watched, frame)
        self._parts = self._parts_for(items)
        # Weak: torch does not swap a tensor that has other references.
        self._weakly = [
            (item.kind, item.name, None if item.kind == "tensor" else weakref.ref(item.value))
            for item in items
        ]
        self._asked_steps = self._steps
        self._used = False
        if steps is not None and items and not any(item.kind in _OF_TORCH for item in items):
            raise ValueError(
                "watch_gradients: steps= counts the steps of torch optimizers, but no torch tensor "
                "is watched (without steps=, the watch ends with its `with` block)"
            )
        self.reasons: dict[str, Reason] = {}
        self.findings: list[Finding] = []
        self.label = "" if frame is None else attempt(written_at, frame) or ""
        self._unused = True

    def __del__(self) -> None:
        if getattr(self, "_unused", False) and not sys.is_finalizing():
            attempt(self._tell, _NEVER_ENTERED)

    @classmethod
    def idle(cls) -> Watch:
        """A watch of nothing, used if the guard itself fails."""
        watch = cls.__new__(cls)
        watch._failed, watch._open, watch.judged = True, False, False
        watch.reasons, watch.findings = {}, []
        watch._ending = contextlib.ExitStack()
        watch.close = watch._ending.close
        return watch

    def _parts_for(self, items: list[Item]) -> list[Part]:
        __tracebackhide__ = True
        check_values = self._finite or self._nonzero
        parts: list[Part] = []
        for make, kinds in ((_torch_part, _OF_TORCH), (_tensorflow_part, _OF_TENSORFLOW)):
            matching = [item for item in items if item.kind in kinds]
            if not matching:
                continue
            part = self._guarded(make, matching, matching == items, check_values)
            if part is not None:
                parts.append(part)
            elif not self._failed:
                types = " and ".join(dict.fromkeys(type(item.value).__name__ for item in items))
                raise ValueError(
                    f"watch_gradients: there is nothing to watch: {types} has no parameters"
                )
        return parts

    def _guarded(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the guard; after a failure there is no verdict."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self._fail(error)
            return None

    def _fail(self, error: Exception) -> None:
        self._failed = True
        fault(error)

    def start(self) -> Watch:
        """Begin to watch, also again after an end.

        Raises:
            ValueError: it has ended, and the tensors no longer exist.
        """
        __tracebackhide__ = True
        self._unused = False
        if not self._open and not self._failed and not attempt(is_disabled, instead=True):
            if self._used:
                checked((ValueError,), self._renew)
            self._open = self._used = True
            self._allowed_here = attempt(_is_allowed, instead=False)
            self._ending.callback(setattr, self, "_open", False)
            attempt(self._begin)
            if self._failed:
                self.close()
        return self

    def _renew(self) -> None:
        """Reset the watch for another use.

        Raises:
            ValueError: the watched tensors no longer exist.
        """
        __tracebackhide__ = True
        found = [
            Item(kind, name, value)
            for kind, name, known in self._weakly
            if known is not None and (value := known()) is not None
        ]
        if len(found) < len(self._weakly):
            raise ValueError(
                "watch_gradients: this watch has ended and does not know its tensors any longer; "
                "call `watch_gradients` again"
            )
        self._parts = self._parts_for(found)
        self._steps, self.judged = self._asked_steps, False
        self.reasons, self.findings = {}, []

    def _begin(self) -> None:
        self._ending.callback(attempt, watching.stop, self._listener)
        self._ending.callback(attempt, collector.leave, self._listener)
        self._ending.callback(attempt, self._leave)
        # The guard records transfers through workers; an open guard keeps the findings.
        self._guarded(watching.start, self._listener)
        attempt(collector.enter_first, self._listener)
        for part in self._parts:
            self._guarded(part.start)
        if self._steps is not None:
            mistakes = (ValueError,)
            self._guarded(steps.after.subscribe, self._stepped, lasting=True, raises=mistakes)

    def _stepped(self, optimizer: Any) -> None:
        """Called after each optimizer step.

        Raises:
            GradGuardError: after the last of `steps` steps, a tensor has no gradient.
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        __tracebackhide__ = True
        if self._steps is None or self.judged or not self._open:
            return
        stepped = steps.parameters_of(optimizer)
        if not any(part.watches(one) for part in self._parts for one in stepped):
            return
        self._steps -= 1
        if self._steps > 0:
            return
        self.judged = True
        try:
            for part in self._parts:
                self._guarded(part.look)
            checked((ValueError,), self._judge)
        except BaseException:
            self.close()
            raise
        if self.findings and self._raises:
            self.close()
            attempt(_report, self.findings)
            raise GradGuardError(self.findings)
        # Torch is iterating over its hooks, so ours is removed at the next backward pass.
        engine.subscribe(self._close_at, lasting=True)

    def _close_at(self, backward: Any) -> None:
        self.close()

    def stop(self) -> list[Finding]:
        """End the watch and give the verdict; a second call does nothing.

        Raises:
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        __tracebackhide__ = True
        if not self._open or self.judged:
            self.close()
            return self.findings
        try:
            for part in self._parts:
                self._guarded(part.stop)
            checked((ValueError,), self._judge)
        finally:
            self.close()
        return self.findings

    def _judge(self) -> None:
        """Give the verdict for what happened so far.

        Raises:
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        __tracebackhide__ = True
        verdicts: dict[str, Reason | None] = {}
        for part in self._parts:
            found = self._guarded(part.verdicts, finite=self._finite, nonzero=self._nonzero)
            verdicts.update(found or {})
        if self._failed or not verdicts:
            return
        allowed, unknown = self._allowed(list(verdicts))
        try:
            self._find(verdicts, allowed, unknown)
        except Exception as error:
            fault(error)
        if unknown and not self.findings:
            raise ValueError(unknown)

    def _find(self, verdicts: Mapping[str, Reason | None], allowed: set[str], unknown: str) -> None:
        self.reasons = {
            name: reason
            for name, reason in verdicts.items()
            if reason is not None and not (name in allowed and reason.kind not in _BAD_VALUES)
        }
        missing = [
            Missing(name, reason, self._description(name)) for name, reason in self.reasons.items()
        ]
        if not (self._permitted or self._allowed_here):
            self.findings = findings_of(missing, verdicts, self._site)
        if unknown and self.findings:  # a wrong pattern must not hide findings
            first = self.findings[0]
            self.findings[0] = replace(first, message=f"{first.message} (Also, {unknown}.)")
        unread = [name for part in self._parts for name in part.unread()] if self._nonzero else []
        if unread:
            self._tell(
                f"watch_gradients: `nonzero=True` could not be checked for "
                f"{shown(unread, list(verdicts))}: the last gradient was computed inside a traced "
                "function (`tf.function`, `fit`), where it has no values. Run that step eagerly: "
                "`compile(run_eagerly=True)`, or `tf.config.run_functions_eagerly(True)`."
            )

    def _tell(self, text: str) -> None:
        """Emit a warning at the line where the watch began."""
        if self._site is not None:
            emit(GradGuardWarning(text), self._site.path, self._site.line)

    @property
    def is_open(self) -> bool:
        """Whether the watch is running."""
        return self._open

    def _leave(self) -> None:
        if self._steps is not None:
            attempt(steps.after.unsubscribe, self._stepped)
            attempt(engine.unsubscribe, self._close_at)
        for part in self._parts:
            attempt(part.stop)

    def check(self) -> None:
        """End the watch.

        Raises:
            GradGuardError: a watched tensor has no gradient.
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        __tracebackhide__ = True
        was_judged = self.judged
        if self._open and checked((ValueError,), self.stop) and not was_judged:
            attempt(_report, self.findings)
            error = attempt(GradGuardError, self.findings)
            if error is not None:
                raise error

    def __enter__(self) -> Watch:
        __tracebackhide__ = True
        with theirs_only:
            checked((ValueError,), self.start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        with theirs_only, self._ending:
            if kind is None:
                checked((ValueError,), self.check)

    def _allowed(self, names: list[str]) -> tuple[set[str], str]:
        """The names that `allow_none` permits, and an error text for unmatched patterns."""
        allowed: set[str] = set()
        strange = []
        for pattern in self._allow:
            fits = fnmatch.filter(names, pattern)
            allowed.update(fits)
            if not fits:
                strange.append(repr(pattern))
        if not strange:
            return allowed, ""
        some = printable.shown(", ".join(names[:5])) + (", …" if len(names) > 5 else "")
        matches = "matches" if len(strange) == 1 else "match"
        unknown = f"allow_none: {', '.join(strange)} {matches} no watched name ({some})"
        return allowed, unknown

    def _description(self, name: str) -> Details:
        for part in self._parts:
            description = part.description(name)
            if description:
                return description
        return {}


def _is_allowed() -> bool:
    """Whether GG104 is allowed here."""
    home = collector.innermost()
    return "GG104" in collector.allowed_now() or (home is not None and "GG104" in home.ignore)


def _report(findings: list[Finding]) -> None:
    """Add raised findings to the report of the surrounding guard.

    Not in a guarded test, which may catch the error; the plugin handles it if it doesn't.
    """
    home = collector.innermost()
    if home is not None and home.test is None:
        for finding in findings:
            home.add(finding)


REFUSED = (TypeError, ValueError)
"""Errors for arguments that cannot be watched."""
_NEVER_ENTERED = (
    "watch_gradients watches nothing here: what it returned was never entered. Write "
    "`with watch_gradients(…):` around the forward and backward pass, or, in a test, use the "
    "fixture of that name."
)
_BAD_VALUES = ("not-finite", "all-zero")


def patterns(allow_none: str | Iterable[str]) -> list[str]:
    """The patterns in `allow_none`.

    Raises:
        TypeError: it is neither a string nor an iterable of strings.
    """
    __tracebackhide__ = True
    given = [allow_none] if isinstance(allow_none, str) else allow_none
    if isinstance(given, Iterable):
        found = list(given)
        if all(isinstance(pattern, str) for pattern in found):
            return found
    raise TypeError(
        f"watch_gradients: allow_none={allow_none!r} is not allowed "
        "(allowed: a glob pattern such as 'head.*', or several)"
    )


def switch(name: str, value: Any) -> bool:
    """Check the value of a boolean option.

    Raises:
        TypeError: it is not a bool.
    """
    __tracebackhide__ = True
    if not isinstance(value, bool):
        raise TypeError(
            f"watch_gradients: {name}={value!r} is not allowed (allowed: True or False)"
        )
    return value


def step_count(steps: Any) -> int:
    """Check a number of optimizer steps.

    Raises:
        TypeError: `steps` is not a positive integer.
    """
    __tracebackhide__ = True
    if type(steps) is int and steps > 0:
        return steps
    raise TypeError(
        f"watch_gradients: steps={steps!r} is not allowed (allowed: a number of optimizer steps, "
        "1 or more)"
    )


_OF_TORCH = ("module", "tensor")
_OF_TENSORFLOW = ("model", "variable")


def _torch_part(items: list[Item], alone: bool, check_values: bool) -> Part | None:
    """Watch `items` of torch; None if they are `alone` and have no parameters."""
    from pytest_gradguard.gradients.torch_diagnosis import JudgedWatch

    watch = JudgedWatch(items, check_values=check_values)
    return None if alone and not watch.entries else watch


def _tensorflow_part(items: list[Item], alone: bool, check_values: bool) -> Part:
    from pytest_gradguard.gradients.tensorflow_watch import TensorFlowWatch

    return TensorFlowWatch(items, check_values=check_values)
