"""The payloads of effects: one class for each kind, with the facts that rules need."""

from __future__ import annotations

from gradguard_lint.domain.values import UNKNOWN, Site, Value
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Literal

    GpuUses = Literal[
        "context",  # a context is made on a GPU
        "driver",  # the GPU's driver is started, without a context
        "hinted",  # another library is configured to use a GPU
        "implied",  # a framework uses the GPU by default
        "named",  # a context; the program names the device, and nothing else shows a GPU
        "work",  # a forked worker computes with data on a GPU
    ]

    Extent = Literal["", "partial", "whole"]

    Uses = Literal[
        "autocast",  # autocast is enabled
        "cached graph",  # the cached function at `place` returns a tensor with history
        "collects gradients",  # the gradient of one example is collected in the loop at `place`
        "dask backend",  # a dask backend is given in a way that joblib rejects
        "fit in one job",  # the search `ident` is set to fit in one job
        "fit in several jobs",  # the search `ident` fits an estimator on the GPU at `place`
        "grad mode",  # gradients are turned on or off
        "keras fit",  # a Keras model fits or predicts on `values`
        "loader workers",  # the loader made at `place` starts workers, in the context in `values`
        "map",  # a mapping with `values` concurrent iterations
        "process group",  # this process joins a process group for training
        "removed wrapper",  # a module is used that no longer exists
        "wrapped on the CPU",  # a worker wraps the modules in `values` to average their gradients
    ]


class Payload:
    """The base of all payloads.

    Attributes:
        target: the object that the effect happens to; unknown where there is none.
        split_by_value: whether effects at one site are separate if their values differ, as between
            iterations of a loop. Different strings always separate them.
        gpu_use: how a GPU is used; "" if it isn't.
    """

    split_by_value: bool = False
    target: Value = UNKNOWN
    gpu_use: GpuUses | Literal[""] = ""

    def merge(self, other: Payload) -> None:
        """Merge the facts of the same effect on another path."""

    def key(self) -> tuple[Hashable, ...]:
        """The key that distinguishes effects at one site."""
        kinds = (str, bool, Value) if self.split_by_value else str
        return tuple(it for it in vars(self).values() if isinstance(it, kinds))


class Event(Payload):
    """A payload whose effect is kept in the past of a path, for rules about order."""


@fields
class GpuUse(Event):
    """A GPU is used by `framework`.

    Attributes:
        asks: whether it only queries or synchronizes, and allocates nothing that the program asked
            for.
        bare: whether CUDA is initialised without a context on a GPU.
        grown: whether GPU memory is allocated on demand.
        device: the GPU, if it is named.
    """

    gpu_use: GpuUses
    framework: str = ""
    asks: bool = False
    bare: bool = False
    grown: bool = False
    device: Value = UNKNOWN

    def merge(self, other: Payload) -> None:
        self.grown = self.grown and isinstance(other, GpuUse) and other.grown


@fields
class GpuSetting(Event):
    """How this process and its children treat GPUs from here on; only in `framework`, if given.

    Settings: ``grown`` (memory is allocated on demand), ``hidden`` (no GPU is visible), ``shown``
        (the environment hides none any more), ``unasked`` (queries start no driver), ``meant`` (the
        program intends to use a GPU).
    """

    setting: Literal["grown", "hidden", "meant", "shown", "unasked"]
    framework: str = ""


@fields
class GpuChoice(Event):
    """Which GPUs a process sees or uses: set in the ``environment``, in TensorFlow's
    ``configuration``, or possibly for code ``inside`` a block or a worker."""

    by: Literal["environment", "configuration", "inside"]
    device: Value = UNKNOWN

    split_by_value = True


class Autograd(Event):
    """torch's autograd runs: if there is a GPU, it starts threads and the driver."""


@fields
class Compute(Event):
    """A computation with `framework`.

    Attributes:
        heavy: whether it is large enough to need compute threads.
        always: whether it needs them even when repeated.
        threads_only: whether it starts the threads and computes nothing.
    """

    framework: str
    heavy: bool = False
    always: bool = False
    threads_only: bool = False

    def merge(self, other: Payload) -> None:
        if isinstance(other, Compute):
            self.heavy = self.heavy or other.heavy
            self.always = self.always and other.always


@fields
class ComputeThreads(Event):
    """The compute threads of `framework` ("": any) are limited, or set to `several`."""

    framework: str = ""
    several: bool = False


class Graph(Payload):
    """A torch operation makes a graph."""


@fields
class Draw(Payload):
    """A draw from the global generator of `framework`; the GPU's, if `target` is on it."""

    framework: str
    target: Value = UNKNOWN

    split_by_value = True


@fields
class GeneratorDraw(Payload):
    """A draw from a generator object, by its identity."""

    generator: int


@fields
class Seed(Event):
    """The global generator of `framework` ("": some) is seeded with `value`."""

    framework: str = ""
    value: Value = UNKNOWN


@fields
class Loaded(Event):
    """A project `module` is imported, or the global generator of `framework` exists from here on;
    unless `certain`, a library was imported that may create it."""

    module: str = ""
    framework: str = ""
    certain: bool = True


@fields
class Backward(Payload):
    """A backward pass from `target`, or a query of its gradients with respect to `inputs`.

    Attributes:
        of_element: whether it starts at one element of a tensor.
    """

    target: Value
    inputs: Value = UNKNOWN
    of_element: bool = False

    split_by_value = True


@fields
class TapeGradient(Payload):
    """A tape computes the gradients of `target` with respect to `sources`."""

    target: Value
    sources: Value = UNKNOWN


@fields
class PossibleTraining(Payload):
    """An unknown object runs ``backward`` or a ``step`` in the innermost `loop`, or `target` is
    ``given`` to a library that runs its backward pass."""

    does: Literal["backward", "given", "step"]
    target: Value = UNKNOWN
    loop: Site | None = None


@fields
class GradRead(Payload):
    """``.grad`` of `target` is read; `fresh`: its gradients are unused by any optimizer."""

    target: Value
    fresh: bool = False


@fields
class GradWrite(Payload):
    """``.grad`` of `target` is set, or shared between processes."""

    target: Value = UNKNOWN


@fields
class GradClear(Payload):
    """The gradients of `target` are cleared."""

    target: Value


@fields
class Detached(Payload):
    """`target` is detached in place, or stops requiring gradients."""

    target: Value


@fields
class Hook(Event):
    """A hook is registered on the tensor `target`, or `removed`."""

    target: Value
    removed: bool = False


@fields
class Collective(Payload):
    """A collective sends `target` to other processes (``exchange``), reduces it (``reduce``), or
    severs it from a backward pass that reaches the outputs in `target` (``cut``)."""

    does: Literal["cut", "exchange", "reduce"]
    target: Value
    ident: int = 0


@fields
class WrapperBypass(Payload):
    """A forward pass of a wrapped module bypasses its wrapper.

    Attributes:
        forward: the identity of the forward pass.
        stepped: whether this is the optimizer step with the gradients of that forward pass.
        wrapper: the class of the wrapper.
        place: where the module's method that leads to it is called.
    """

    forward: int
    stepped: bool = False
    wrapper: Value = UNKNOWN
    place: Site | None = None


@fields
class Write(Event):
    """An in-place write to `target`.

    Attributes:
        value: what is written.
        whole: whether it replaces the entire old value.
        exact: whether it is safe from concurrent writes.
    """

    target: Value
    value: Value = UNKNOWN
    whole: bool = False
    exact: bool = False


@fields
class GlobalWrite(Event):
    """A global of `module` is rebound."""

    module: str


@fields
class MemoryUse(Payload):
    """`target` uses the memory of an array (``shared``), becomes a ``parameter`` in it, or that
    memory is ``written`` to."""

    does: Literal["parameter", "shared", "written"]
    target: Value


@fields
class ModelChange(Event):
    """The model `target` is changed, by `value`: ``whole``, ``partial`` or unknown extent."""

    target: Value
    value: Value = UNKNOWN
    extent: Extent = ""

    split_by_value = True


@fields
class ModelUse(Payload):
    """The model `target` is saved (``save``), its ``state`` is read, or it runs and may update
    running statistics, in the mode ``train``, ``eval`` or an unknown one (``run``)."""

    target: Value
    does: Literal["eval", "run", "save", "state", "train"] = "save"


@fields
class OptimizerStep(Event):
    """The optimizer `target` steps; `fresh`: with the parent's own gradients."""

    target: Value
    fresh: bool = False

    split_by_value = True


@fields
class OptimizerChange(Payload):
    """The optimizer `target` may get other parameters."""

    target: Value


@fields
class Capture(Payload):
    """A worker uses a variable of an enclosing scope, or an attribute of the object `owner`.

    Attributes:
        on_import: its value after the module's import, if `value` is unknown.
        module: the module of the variable.
    """

    value: Value
    on_import: Value | None = None
    module: str = ""
    is_global: bool = False
    owner: int = 0


@fields
class Escape(Payload):
    """A worker passes `target` to unknown code.

    Attributes:
        reachable: values reachable from `target`, if the worker is a process that runs a backward
            pass.
    """

    target: Value
    reachable: tuple[Value, ...] = ()

    split_by_value = True


@fields
class UnknownCall(Payload):
    """A worker calls an unknown function, possibly `given` as an argument."""

    given: bool


@fields
class LibraryUse(Payload):
    """A use of a library that is a pitfall by itself, or matters to one.

    Attributes:
        use: the kind of use.
        values: the relevant arguments.
        certain: whether it certainly runs.
    """

    use: Uses
    values: tuple[Value, ...] = ()
    place: Site | None = None
    ident: int = 0
    certain: bool = True


@fields
class EpochRepeated(Payload):
    """A loader is iterated again in `loop`, with its sampler still in the same epoch.

    Attributes:
        made: where the sampler is created.
        same_epoch: whether the sampler's epoch is set, to the same value each time.
        names: expressions for the sampler at `loop`, with their values.
    """

    made: Site | None
    loop: Site
    same_epoch: bool = False
    names: tuple[tuple[str, Value], ...] = ()
