"""What takes the guard's own faults where nothing else of the guard is imported yet."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def safely(
    step: Callable[..., Any],
    *args: Any,
    instead: Any = None,
    raises: tuple[type[Exception], ...] = (),
    **kwargs: Any,
) -> Any:
    """As `attempt` of the runtime's `faults`, which are imported only once there is a fault.

    Raises:
        Exception: one of `raises`, which says that what the program has given is not usable.
    """
    try:
        return step(*args, **kwargs)
    except raises:
        raise
    except Exception as error:
        import_module("pytest_gradguard.runtime.kernel.faults").fault(error)
        return instead
