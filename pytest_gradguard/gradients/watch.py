"""One watch, whatever the framework: it begins, it ends, and it says what is missing and why."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol

from pytest_gradguard.disabled import is_disabled
from pytest_gradguard.findings import Finding
from pytest_gradguard.gradients.reasons import Reason
from pytest_gradguard.gradients.report import Missing, findings_of
from pytest_gradguard.gradients.targets import items_of
from pytest_gradguard.messages import GradGuardError
from pytest_gradguard.runtime import callsite, collector, starting, watching


class Part(Protocol):
    """What watches the tensors of one framework."""

    def start(self) -> None:
        """Begin to watch."""

    counts_steps: bool
    """Whether torch's optimizers step on such tensors."""

    def watches(self, tensor: Any) -> bool:
        """Whether `tensor` is one of those that are watched."""

    def look(self) -> None:
        """See what has arrived."""

    def stop(self) -> None:
        """Look a last time, and leave everything as it was."""

    def verdicts(self, *, finite: bool, nonzero: bool) -> dict[str, Reason | None]:
        """The reason why each name has no gradient; None where it has one."""

    def description(self, name: str) -> Mapping[str, Any]:
        """Type, shape, dtype and device of the tensor of that name."""


class Watch:
    """The watched tensors of one call of `watch_gradients`; also a context manager.

    Args:
        watched, allow_none, finite, nonzero, steps: as `watch_gradients` takes them.
        raises: what is missing after `steps` steps is raised there.

    Attributes:
        judged: it was judged after `steps` steps, before its end.
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
    ) -> None:
        __tracebackhide__ = True
        frame = callsite.user_frame()
        self._site = None if frame is None else callsite.site_of(frame)
        self._allow = patterns(allow_none)
        self._finite = switch("finite", finite)
        self._nonzero = switch("nonzero", nonzero)
        self._steps = None if steps is None else step_count(steps)
        self._raises = raises
        self._hook: Any = None
        self._open = False
        self.judged = False
        self._listener = collector.Collector()
        self._parts = _parts(items_of(watched, frame), check_values=finite or nonzero)
        if steps is not None and not any(part.counts_steps for part in self._parts):
            raise ValueError(
                "watch_gradients: steps= counts the steps of torch optimizers, but no torch tensor "
                "is watched (without steps=, the watch ends with its `with` block)"
            )
        self.reasons: dict[str, Reason] = {}
        self.findings: list[Finding] = []

    def start(self) -> Watch:
        """Begin to watch, once."""
        if not self._open and not is_disabled():
            self._open = True
            # The guard knows what went through workers; findings go to whoever listens already.
            starting.start()
            collector.enter_first(self._listener)
            for part in self._parts:
                part.start()
            if self._steps is not None:
                optim = sys.modules["torch.optim.optimizer"]
                self._hook = optim.register_optimizer_step_post_hook(self._stepped)
        return self

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has stepped.

        Raises:
            GradGuardError: it was the last step to wait for, and a tensor has no gradient.
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        __tracebackhide__ = True
        if self._steps is None or self.judged or not self._open:
            return
        stepped = [one for group in optimizer.param_groups for one in group["params"]]
        if not any(part.watches(one) for part in self._parts for one in stepped):
            return
        self._steps -= 1
        if self._steps > 0:
            return
        self.judged = True
        try:
            for part in self._parts:
                part.look()
            self._judge()
        except BaseException:
            self.close()
            raise
        if self.findings and self._raises:
            self.close()
            raise GradGuardError(self.findings)
        # Torch goes through its hooks now: ours are taken off as the next backward begins.
        sys.modules[_ENGINE].subscribe(self._close_at)

    def _close_at(self, backward: Any) -> None:
        self.close()

    def stop(self) -> list[Finding]:
        """End the watch, and find out what is missing and why. Ending twice is ending once.

        Raises:
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        __tracebackhide__ = True
        if not self._open or self.judged:
            self.close()
            return self.findings
        try:
            for part in self._parts:
                part.stop()
            self._judge()
        finally:
            self.close()
        return self.findings

    def _judge(self) -> None:
        """Find out what is missing so far, and why.

        Raises:
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        __tracebackhide__ = True
        verdicts: dict[str, Reason | None] = {}
        for part in self._parts:
            verdicts.update(part.verdicts(finite=self._finite, nonzero=self._nonzero))
        allowed = self._allowed(list(verdicts))
        self.reasons = {
            name: reason
            for name, reason in verdicts.items()
            if reason is not None and not (name in allowed and reason.kind not in _BAD_VALUES)
        }
        missing = [
            Missing(name, reason, self._description(name)) for name, reason in self.reasons.items()
        ]
        self.findings = findings_of(missing, verdicts, self._site)

    @property
    def is_open(self) -> bool:
        """Whether it has begun and not ended."""
        return self._open

    def close(self) -> None:
        """End the watch without a verdict."""
        if self._open:
            self._open = False
            if self._hook is not None:
                self._hook.remove()
                sys.modules[_ENGINE].unsubscribe(self._close_at)
            for part in self._parts:
                part.stop()
            collector.leave(self._listener)
            watching.stop()

    def check(self) -> None:
        """End the watch.

        Raises:
            GradGuardError: a watched tensor has no gradient.
            ValueError: a pattern of `allow_none` matches no watched name.
        """
        __tracebackhide__ = True
        told = self.judged
        if self._open and self.stop() and not told:
            raise GradGuardError(self.findings)

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        if kind is not None:
            self.close()
            return
        self.check()

    def _allowed(self, names: list[str]) -> set[str]:
        __tracebackhide__ = True
        allowed: set[str] = set()
        for pattern in self._allow:
            fits = fnmatch.filter(names, pattern)
            if not fits:
                some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
                raise ValueError(f"allow_none: {pattern!r} matches no watched name ({some})")
            allowed.update(fits)
        return allowed

    def _description(self, name: str) -> Mapping[str, Any]:
        for part in self._parts:
            description = part.description(name)
            if description:
                return description
        return {}


_ENGINE = "pytest_gradguard.runtime.frameworks.torch.engine"
_BAD_VALUES = ("not-finite", "all-zero")


def patterns(allow_none: str | Iterable[str]) -> list[str]:
    """The patterns of `allow_none`.

    Raises:
        TypeError: it is something else.
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
    """The `value` of the option `name`, which is on or off.

    Raises:
        TypeError: it is something else.
    """
    __tracebackhide__ = True
    if not isinstance(value, bool):
        raise TypeError(
            f"watch_gradients: {name}={value!r} is not allowed (allowed: True or False)"
        )
    return value


def step_count(steps: Any) -> int:
    """A number of optimizer steps.

    Raises:
        TypeError: `steps` is something else.
    """
    __tracebackhide__ = True
    if type(steps) is int and steps > 0:
        return steps
    raise TypeError(
        f"watch_gradients: steps={steps!r} is not allowed (allowed: a number of optimizer steps, "
        "1 or more)"
    )


def _parts(items: list[Any], *, check_values: bool) -> list[Part]:
    __tracebackhide__ = True
    parts: list[Part] = []
    torch_items = [item for item in items if item.kind in ("module", "tensor")]
    if torch_items:
        from pytest_gradguard.gradients.torch_watch import TorchWatch

        watch = TorchWatch(torch_items, check_values=check_values)
        if not watch.entries and torch_items == items:
            kinds = " and ".join(dict.fromkeys(type(item.value).__name__ for item in items))
            raise ValueError(
                f"watch_gradients: there is nothing to watch: {kinds} has no parameters"
            )
        parts.append(watch)
    others = [item for item in items if item.kind in ("model", "variable")]
    if others and "tensorflow" in sys.modules:
        from pytest_gradguard.gradients.tensorflow_watch import TensorFlowWatch

        parts.append(TensorFlowWatch(others, check_values=check_values))
    return parts
