"""One check of a gradient, from its arguments to its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple, get_args

from pytest_gradguard.checking import report
from pytest_gradguard.checking.ranks import Ranks, Reduce
from pytest_gradguard.checking.reach import Reached
from pytest_gradguard.checking.search import NotDeterministic, Search, Wrong
from pytest_gradguard.disabled import is_disabled
from pytest_gradguard.gradients.targets import items_of, join, unwrapped
from pytest_gradguard.gradients.watch import Watch
from pytest_gradguard.messages import GradGuardError
from pytest_gradguard.runtime import guard
from pytest_gradguard.runtime.kernel import callsite
from pytest_gradguard.runtime.kernel.faults import attempt

_NAME = "check_gradients"


class Checked(NamedTuple):
    """How a gradient was checked and found correct.

    Attributes:
        precision: the dtype of the compared losses.
        directions: along how many directions.
        evaluations: how often the closure ran.
    """

    precision: str
    directions: int
    evaluations: int

    def __str__(self) -> str:
        many = "s" * (self.directions != 1)
        return (
            f"the gradient is right: {self.directions} direction{many}, {self.precision}, "
            f"{self.evaluations} evaluations"
        )


def check(
    closure: Callable[[], Any],
    parameters: Any,
    *,
    rtol: float,
    directions: int,
    eps: float | None,
    reduce: Reduce,
) -> Checked | None:
    """Check a gradient; see `checking.check_gradients`."""
    __tracebackhide__ = True
    _refuse_arguments(closure, rtol, directions, eps, reduce)
    frame = attempt(callsite.user_frame)
    named = _named(parameters, frame)
    if is_disabled():
        return None
    ranks = Ranks(reduce)
    try:
        with guard("record"):  # for the calls to workers, whose tasks are seeded
            point = _point(closure, named, parameters, always_backward=ranks.size > 1)
            search, wrong = _searched(point, ranks, rtol, directions, eps)
            precision = point.precision
            rtol = search.rtol
            cause = _cause(point, named, wrong) if wrong else None
    except BaseException as error:
        ranks.failed(error)
        raise
    if cause is None:
        return Checked(precision.name, directions, search.evaluations)
    site = None if frame is None else attempt(callsite.site_of, frame)
    found = report.findings_of(wrong, point.names, cause, precision, rtol, site)
    raise GradGuardError(found)


def _refuse_arguments(
    closure: Any, rtol: float, directions: int, eps: float | None, reduce: str
) -> None:
    """Refuse invalid arguments.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """
    __tracebackhide__ = True
    if not callable(closure):
        raise TypeError(
            f"{_NAME}: the closure has to be a function without arguments that returns the loss, "
            f"not {type(closure).__name__!r}"
        )
    if not rtol > 0:
        raise ValueError(f"{_NAME}: rtol has to be above 0, not {rtol!r}")
    if eps is not None and not eps > 0:
        raise ValueError(f"{_NAME}: eps has to be above 0, not {eps!r}")
    if not isinstance(directions, int) or directions < 1:
        raise ValueError(f"{_NAME}: directions has to be 1 or more, not {directions!r}")
    if reduce not in get_args(Reduce):
        raise ValueError(f"{_NAME}: reduce has to be 'mean' or 'sum', not {reduce!r}")


def _named(parameters: Any, frame: FrameType | None) -> dict[str, Any]:
    """The parameters that want a gradient, by name.

    Raises:
        TypeError: `parameters` contains another object.
        ValueError: there are none.
    """
    __tracebackhide__ = True
    found: dict[int, tuple[str, Any]] = {}
    for item in items_of(parameters, frame, asked_by=_NAME):
        for name, tensor in _tensors_in(item):
            found.setdefault(id(tensor), (name, tensor))
    for name, tensor in found.values():
        if not (hasattr(tensor, "requires_grad") or hasattr(tensor, "trainable")):
            raise ValueError(f"{_NAME}: {name!r} is a constant; check variables")
    wanted = {name: tensor for name, tensor in found.values() if _wants_gradient(tensor)}
    if not found:
        raise ValueError(f"{_NAME}: there are no parameters to check")
    if not wanted:
        raise ValueError(f"{_NAME}: none of the {len(found)} parameters requires a gradient")
    for name, tensor in wanted.items():
        if not getattr(tensor, "is_leaf", True):
            raise ValueError(
                f"{_NAME}: {name!r} is computed from other tensors; check the leaves that it is "
                "computed from"
            )
    return wanted


def _tensors_in(item: Any) -> Iterator[tuple[str, Any]]:
    if item.kind == "module":
        for name, tensor in unwrapped(item.value).named_parameters():
            yield join(item.name, name), tensor
    elif item.kind == "model":
        for variable in item.value.trainable_variables:
            yield join(item.name, getattr(variable, "path", variable.name)), variable
    else:
        yield item.name, item.value


def _wants_gradient(tensor: Any) -> bool:
    return bool(getattr(tensor, "requires_grad", getattr(tensor, "trainable", False)))


def _point(
    closure: Callable[[], Any], named: dict[str, Any], parameters: Any, *, always_backward: bool
) -> Any:
    reached = Reached([closure, parameters])
    of_torch = [hasattr(one, "requires_grad") for one in named.values()]
    if not any(of_torch):
        from pytest_gradguard.checking.tensorflow_point import TensorFlowPoint

        return TensorFlowPoint(closure, named, reached)
    if not all(of_torch):
        raise ValueError(f"{_NAME}: check the parameters of one framework at a time")
    from pytest_gradguard.checking.torch_point import TorchPoint

    return TorchPoint(closure, named, reached, always_backward=always_backward)


def _searched(
    point: Any, ranks: Ranks, rtol: float, directions: int, eps: float | None
) -> tuple[Search, list[Wrong]]:
    """Search in double precision, or in the program's if that is impossible."""
    __tracebackhide__ = True
    if not ranks.agreed(not point.may_cast()):
        try:
            with point.open(double=True):
                search = Search(point, ranks, rtol, eps)
                wrong = search.run(directions)
            # Processes that were started before read the tensors without the cast.
            if not wrong or not ranks.agreed(point.is_shared()):
                return search, wrong
        except NotDeterministic:
            raise
        except Exception as error:  # it may run in the program's own precision
            ranks.failed(error)
    with point.open(double=False):
        search = Search(point, ranks, rtol, eps)
        return search, search.run(directions)


def _cause(point: Any, named: dict[str, Any], wrong: list[Wrong]) -> report.Cause:
    """Run the closure under the guard as the program does, and collect its findings."""
    missing = {one.name: named[one.name] for one in wrong if one.missing}
    with point.open(double=False), guard("record") as found:
        point.start()
        watch = attempt(Watch, missing, raises=False, permitted=True) if missing else None
        if watch is not None:
            attempt(watch.start)
        try:
            point.run()
            attempt(point.step)
        except Exception:  # it ran before: report what is known
            pass
        finally:
            if watch is not None:
                attempt(watch.stop)
        findings = found.findings
    return report.Cause(findings, {} if watch is None else watch.reasons)
