"""What effects are about: a class for each kind of effect, with the facts that its readers need."""

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
        "hinted",  # another library is told to use a GPU
        "implied",  # a framework takes the GPU without being told
        "named",  # a context, where the program is told which device it is and nothing shows a GPU
        "work",  # a forked worker computes with what lies on a GPU
    ]

    Extent = Literal["", "partial", "whole"]

    Uses = Literal[
        "autocast",  # autocast is put in force
        "cached graph",  # the cached function at `place` returns a tensor with history
        "collects gradients",  # the gradient of one example is collected in the loop at `place`
        "dask backend",  # a backend is named that cannot be named so
        "fit in one job",  # the search `ident` is told to fit in one job
        "fit in several jobs",  # the search `ident` fits an estimator on the GPU at `place`
        "grad mode",  # gradients are turned on or off
        "keras fit",  # a Keras model fits or predicts on `values`
        "loader workers",  # the loader made at `place` starts workers, in the context in `values`
        "map",  # a mapping with `values` iterations at once
        "process group",  # this process joins a group of processes that train together
        "removed wrapper",  # a module is used that no longer exists
        "wrapped on the CPU",  # a worker wraps the modules in `values` to average their gradients
    ]


class Payload:
    """The base of all payloads.

    Attributes:
        target: the object that the effect happens to; unknown where there is none.
        split_by_value: whether effects of one place are several where they are of other values, as
            in turns of a loop; where a text differs, they always are.
        gpu_use: how a GPU is used, if it is a use of one.
    """

    split_by_value: bool = False
    target: Value = UNKNOWN
    gpu_use: GpuUses | Literal[""] = ""

    def merge(self, other: Payload) -> None:
        """Take in what `other` knows of the same effect, on another way."""

    def key(self) -> tuple[Hashable, ...]:
        """What tells effects of one place apart."""
        kinds = (str, bool, Value) if self.split_by_value else str
        return tuple(it for it in vars(self).values() if isinstance(it, kinds))


class Event(Payload):
    """A payload whose effect is kept in the past of a way: rules ask what came before."""


@fields
class GpuUse(Event):
    """A GPU is used by `framework`.

    Attributes:
        asks: whether it asks or waits, and puts nothing on the GPU that the program asked for.
        bare: whether CUDA is initialised, and no context is made on a GPU.
        grown: whether the GPU's memory is taken as it is needed.
        device: the GPU, where it is named.
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
    """How this process, and its children, treat GPUs from here on; `framework` alone, if given.

    Settings: ``grown`` (memory is taken as it is needed), ``hidden`` (no GPU is seen), ``shown``
    (the environment hides none any more), ``unasked`` (questions start no driver), ``meant`` (the
    program shows that it means to use a GPU).
    """

    setting: Literal["grown", "hidden", "meant", "shown", "unasked"]
    framework: str = ""


@fields
class GpuChoice(Event):
    """Which GPUs a process sees or uses: set in the ``environment``, in TensorFlow's
    ``configuration``, or, perhaps, for the code that runs ``inside`` a block or a worker."""

    by: Literal["environment", "configuration", "inside"]
    device: Value = UNKNOWN

    split_by_value = True


class Autograd(Event):
    """torch's autograd runs: where there is a GPU, it starts threads and the driver."""


@fields
class Compute(Event):
    """A computation with `framework`.

    Attributes:
        heavy: whether it is large enough to need compute threads.
        always: whether it needs them though the same has been computed before.
        threads_only: whether the threads are started, and nothing is computed.
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
    """The compute threads of `framework` (any, where it is "") are limited, or set to `several`."""

    framework: str = ""
    several: bool = False


class Graph(Payload):
    """A torch operation makes a graph."""


@fields
class Draw(Payload):
    """A draw from the global generator of `framework`; the GPU's, if `target` is there."""

    framework: str
    target: Value = UNKNOWN

    split_by_value = True


@fields
class GeneratorDraw(Payload):
    """A draw from a generator object, by its identity."""

    generator: int


@fields
class Seed(Event):
    """The global generator of `framework` (some, where it is "") is seeded by `value`."""

    framework: str = ""
    value: Value = UNKNOWN


@fields
class Loaded(Event):
    """A `module` of the project's is imported, or the global generator of `framework` is there
    from here on: a library that may bring it is imported, if that is not `certain`."""

    module: str = ""
    framework: str = ""
    certain: bool = True


@fields
class Backward(Payload):
    """A backward pass from `target`, or the question for its gradients by `inputs`.

    Attributes:
        of_element: whether it starts at one element of a tensor.
    """

    target: Value
    inputs: Value = UNKNOWN
    of_element: bool = False

    split_by_value = True


@fields
class TapeGradient(Payload):
    """A tape is asked for the gradients of `target` by `sources`."""

    target: Value
    sources: Value = UNKNOWN


@fields
class PossibleTraining(Payload):
    """Something unknown goes ``backward``, or takes a ``step``, in the innermost `loop`; or
    `target` is ``given`` to a library, which goes backward from it."""

    does: Literal["backward", "given", "step"]
    target: Value = UNKNOWN
    loop: Site | None = None


@fields
class GradRead(Payload):
    """``.grad`` of `target` is read; `fresh`: it has gradients that no optimizer has used."""

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
    """`target` is detached in place, or requires no gradient from here on."""

    target: Value


@fields
class Hook(Event):
    """A hook is put on the tensor `target`, or `removed` from it."""

    target: Value
    removed: bool = False


@fields
class Collective(Payload):
    """A collective gives `target` to other processes (``exchange``), reduces it (``reduce``), or
    cuts it off from a backward pass that reaches the outputs in `target` (``cut``)."""

    does: Literal["cut", "exchange", "reduce"]
    target: Value
    ident: int = 0


@fields
class WrapperBypass(Payload):
    """A forward pass of a wrapped module bypasses its wrapper.

    Attributes:
        forward: the identity of the forward pass.
        stepped: whether it is the optimizer's step with the gradients of that forward pass.
        wrapper: the class of the wrapper.
        place: where a method of the module is called that leads to it.
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
        whole: whether nothing is left of the old value.
        exact: whether no other thread can spoil it.
    """

    target: Value
    value: Value = UNKNOWN
    whole: bool = False
    exact: bool = False


@fields
class GlobalWrite(Event):
    """A global of `module` is bound anew."""

    module: str


@fields
class MemoryUse(Payload):
    """`target` is made on the memory of an array (``shared``), becomes a ``parameter`` there, or
    that memory is ``written`` to."""

    does: Literal["parameter", "shared", "written"]
    target: Value


@fields
class ModelChange(Event):
    """The model `target` is changed, by `value`: as a ``whole``, a part of it (``partial``), or
    nobody knows how far."""

    target: Value
    value: Value = UNKNOWN
    extent: Extent = ""

    split_by_value = True


@fields
class ModelUse(Payload):
    """The model `target` is saved (``save``), or its ``state`` is asked for; or it runs, and may
    write its running statistics, in the mode ``train``, ``eval`` or one that is not known
    (``run``)."""

    target: Value
    does: Literal["eval", "run", "save", "state", "train"] = "save"


@fields
class OptimizerStep(Event):
    """The optimizer `target` steps; `fresh`: with gradients of the parent's own."""

    target: Value
    fresh: bool = False

    split_by_value = True


@fields
class OptimizerChange(Payload):
    """The optimizer `target` may get other parameters."""

    target: Value


@fields
class Capture(Payload):
    """A worker uses a variable from outside, or an attribute of the object `owner`.

    Attributes:
        on_import: what the module's import gave it, where `value` is not known.
        module: the module that the variable is of.
    """

    value: Value
    on_import: Value | None = None
    module: str = ""
    is_global: bool = False
    owner: int = 0


@fields
class Escape(Payload):
    """A worker gives `target` to something unknown.

    Attributes:
        reachable: what can be reached from `target`, where the worker is a process and goes
            backward.
    """

    target: Value
    reachable: tuple[Value, ...] = ()

    split_by_value = True


@fields
class UnknownCall(Payload):
    """A worker calls something unknown, which it was `given` perhaps."""

    given: bool


@fields
class LibraryUse(Payload):
    """A library is used in a way that matters by itself.

    Attributes:
        use: the way.
        values: the arguments that matter.
        certain: whether it runs as it is written.
    """

    use: Uses
    values: tuple[Value, ...] = ()
    place: Site | None = None
    ident: int = 0
    certain: bool = True


@fields
class EpochRepeated(Payload):
    """A loader is iterated again in `loop`, and its sampler gives the order of the same epoch.

    Attributes:
        made: where the sampler is made.
        same_epoch: whether the sampler is given an epoch, the same each time.
        names: the expressions that give the sampler at `loop`, with their values.
    """

    made: Site | None
    loop: Site
    same_epoch: bool = False
    names: tuple[tuple[str, Value], ...] = ()
