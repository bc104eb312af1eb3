"""A framework's interface to the guard: one `Framework` each.

Ours are the packages of `frameworks`; other packages add theirs with
`pytest_gradguard.register_framework`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Protocol

from pytest_gradguard.details import Details
from pytest_gradguard.runtime.kernel import locate
from pytest_gradguard.runtime.kernel.faults import fault
from pytest_gradguard.runtime.kernel.patching import Patch, Patches


class Appends(Protocol):
    """A list, or a stand-in that nobody reads."""

    def append(self, item: tuple[Any, Framework], /) -> None:
        """Add an item."""


class Transfer(Protocol):
    """Records every object with gradients, or on a GPU, in one pickling.

    A model has very many parameters and modules: those that need no inspection are kept here,
    without a call for each.

    Attributes:
        parameters: parameters that are trained and have no hooks, with their framework.
        inside: the ids of the modules that are part of another one; None: modules do not matter.
    """

    @property
    def parameters(self) -> Appends: ...
    @property
    def inside(self) -> set[int] | None: ...

    def tensor(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Record a tensor that may need a gradient and is no parameter.

        Returns:
            Its `reduction`, or one with a note attached.
        """

    def parameter(self, parameter: Any, framework: Framework) -> None:
        """Record any other parameter or variable that is trained."""

    def optimizer(self, optimizer: Any, reduction: Any, framework: Framework) -> Any:
        """Record an optimizer whose state does not survive this pickling; returns as `tensor`."""

    def on_gpu(self, tensor: Any, reduction: Any, framework: Framework) -> Any:
        """Record a tensor or array on a GPU; returns as `tensor`."""

    def differentiated(self, tensor: Any, reduction: Any) -> Any:
        """Record a tensor of a derivative that the caller takes: pickling drops its tangent.

        If `reduction` is None, it belongs to a transform, and torch refuses to pickle it. Otherwise
        it returns as `tensor`.
        """

    def module(self, module: Any, reduction: Any) -> Any:
        """Record a module that is not part of another one; returns as `tensor`."""

    def ended(self) -> None:
        """End: the pickling is over."""


class _Active(threading.local):
    transfer: Transfer | None = None
    busy: bool = False
    data: Any = None  # the tensor of the parameter on a GPU that was met last


active = _Active()
"""The transfer that is active in this thread."""


class Reductions(Protocol):
    """The hook that makes a framework's objects report to the active transfer."""

    applied: bool

    def apply(self) -> None:
        """Put it in place."""

    def undo(self) -> None:
        """Restore everything."""


class Framework:
    """A framework whose arrays carry gradients or are on a GPU.

    Subclass it for your arrays. No method is called before the program has imported `module`.

    Attributes:
        name: its name, by which it is registered and named in findings.
        title: its name in messages; `name` if empty.
        module: the module whose import makes the framework relevant.
        complete: a package and a name in it that exists once the import is complete: while another
            thread imports it, nothing is patched. By default `module` alone is enough.
        packages: the packages of the framework. Their frames are never shown as the user's line.
        types: the names of the classes in `module` whose objects are its arrays.
        default_gpu: a copy arrives on the default GPU, not on that of the original.
        backwards: a backward pass in the parent shows later whether a shipped array got a gradient.
        on_tapes: gradients come from tapes, not from arrays that require grad.
        waits_in: packages whose code, in a forked process, may wait for threads of the framework
            that exist only in the parent, if only the wait itself shows that.
        waits_by: methods in C that wait in this way, if the program calls them itself.
        implementation: a module whose functions are methods of this object, imported once the
            framework is.
        more_reductions: modules with further `reductions`.
    """

    name: str = ""
    title: str = ""
    module: str = ""
    complete: tuple[str, str] | None = None
    packages: Sequence[str] = ()
    types: Sequence[str] = ()
    default_gpu: bool = False
    backwards: bool = False
    on_tapes: bool = False
    waits_in: Sequence[str] = ()
    waits_by: Sequence[str] = ()
    implementation: str | None = None
    more_reductions: Sequence[str] = ()

    # -- what its arrays are -------------------------------------------------------------------

    def requires_grad(self, array: Any) -> bool:
        """Whether `array` requires a gradient."""
        return False

    def is_parameter(self, array: Any) -> bool:
        """Whether `array`, which requires grad, is a parameter that is trained."""
        return False

    def history(self, array: Any) -> Any:
        """The operation that made `array`, which pickling would drop; None if there is none."""
        return None

    def device(self, array: Any) -> str:
        """The device of `array`."""
        return str(getattr(array, "device", "cpu"))

    def on_gpu(self, array: Any) -> bool:
        """Whether `array` is on a GPU."""
        device = self.device(array).lower()
        return any(word in device for word in ("cuda", "gpu", "rocm"))

    def shape(self, array: Any) -> Iterable[int | None]:
        """The shape of `array`."""
        return getattr(array, "shape", ())

    def dtype(self, array: Any) -> str:
        """The dtype of `array`."""
        return str(getattr(array, "dtype", ""))

    # -- what calls and findings ask -----------------------------------------------------------

    def tells_results(self) -> bool:
        """Whether results of workers are inspected, as tasks begin."""
        return self.module in sys.modules

    def threads_are_up(self) -> bool:
        """Whether this process has started threads that a forked process would wait for."""
        return False

    def wanted(self, call: Any, tensor: Any) -> bool:
        """Whether a tensor that `call` ships, and that may need a gradient, is worth a finding."""
        return True

    def remade(self, roots: Iterable[tuple[str, Any]]) -> set[int]:
        """The ids of objects under `roots` that are recomputed before anything uses them."""
        return set()

    def spent(self, tensor: Any) -> bool:
        """Whether the history of `tensor` was used already, and cannot be used again."""
        return False

    def recorded(self, tensor: Any) -> bool:
        """Whether a backward pass, or a tape in this thread, would continue through `tensor`."""
        return self.history(tensor) is not None

    def shares_memory(self, array: Any) -> bool:
        """Whether the standard library's pickler shares the memory of `array` as it ships it."""
        return False

    def hooks_of(self, array: Any) -> list[Any]:
        """The program's gradient hooks on `array`, which are not pickled."""
        return []

    def leaves(self, history: Any) -> Iterator[Any]:
        """The tensors that need a gradient behind a history."""
        return iter(())

    def find(self, roots: Iterable[tuple[str, Any]], *, deep: bool = True) -> dict[int, str]:
        """The paths of the framework's objects under `roots`, as `locate.find` gives them."""
        kinds = self._kinds()
        return locate.find(roots, lambda item: issubclass(type(item), kinds), deep=deep)

    def met(self, item: Any) -> tuple[Any, str]:
        """The object whose pickling revealed `item`, and the path from there to `item`."""
        return item, ""

    def on_its_way(self, reduction: Any) -> Any:
        """The `reduction` of an object on a GPU as it goes to a worker; unchanged for most."""
        return reduction

    def describe(self, item: Any) -> Details:
        """Framework, type, shape (a list of sizes), dtype and device, as plain values."""
        return {
            "framework": self.name,
            "type": type(item).__name__,
            "shape": [None if size is None else int(size) for size in self.shape(item)],
            "dtype": self.dtype(item),
            "device": self.device(item),
        }

    # -- watching their pickling ---------------------------------------------------------------

    @property
    def is_imported(self) -> bool:
        """Whether the program has imported the framework whole."""
        if self.module not in sys.modules:
            return False
        package, holds = self.complete or (self.module, "__name__")
        return hasattr(sys.modules.get(package), holds)

    def reductions(self) -> list[Reductions]:
        """The hooks that make its objects report to the active transfer."""
        found: list[Reductions] = [Patches([self._patch(kind) for kind in self._kinds()])]
        if self.implementation is not None:
            module = import_module(self.implementation)
            for method in _METHODS & vars(module).keys():
                setattr(self, method, getattr(module, method))
        return [*found, *(import_module(name).reductions for name in self.more_reductions)]

    def _kinds(self) -> tuple[type, ...]:
        module = sys.modules[self.module]
        return tuple(getattr(module, name) for name in self.types)

    def _patch(self, kind: type) -> Patch:
        return Patch(kind, "__reduce_ex__", self._watched, inherited=True)

    def _watched(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @functools.wraps(original)
        def __reduce_ex__(array: Any, protocol: Any) -> Any:
            current = active.transfer
            if current is None or active.busy:
                return original(array, protocol)
            active.busy = True  # the method of a subclass calls that of its base
            try:
                reduction = original(array, protocol)
            finally:
                active.busy = False
            return self._report(current, array, reduction)

        return __reduce_ex__

    def _report(self, current: Transfer, array: Any, reduction: Any) -> Any:
        try:
            if self.requires_grad(array):
                if self.is_parameter(array):
                    current.parameter(array, self)
                else:
                    reduction = current.tensor(array, reduction, self)
            if self.on_gpu(array):
                return current.on_gpu(array, reduction, self)
        except Exception as error:
            fault(error)
        return reduction


_METHODS = frozenset(
    name
    for name, value in vars(Framework).items()
    if callable(value) and not name.startswith("_") and name != "reductions"
)
