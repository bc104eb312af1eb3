"""NumPy, CuPy, and the random generators of all libraries."""

from __future__ import annotations

import ast
import sys

from gradguard_lint.domain.conditions import NONE
from gradguard_lint.domain.effects import of_kinds
from gradguard_lint.domain.payloads import Draw, GeneratorDraw, Loaded, Seed
from gradguard_lint.domain.shapes import inner, known_items, sequence
from gradguard_lint.domain.values import (
    NOTHING,
    NUMBER,
    UNKNOWN,
    Const,
    Frame,
    Items,
    Tensor,
    Thing,
    Value,
    constant,
    is_number,
    join,
    of,
)
from gradguard_lint.engine.attributes import item
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.turns import in_loop
from gradguard_lint.models.numpy import (
    ELEMENTS,
    KEEPS,
    LOAD_RANDOM,
    MAPPED,
    RANDOM,
    RESHAPES,
    SUMMARIES,
    TURNS,
    VIEWS,
    WITHOUT_NUMPY,
    WITHOUT_TORCH,
)
from gradguard_lint.models.rows import Row
from gradguard_lint.models.tensorflow import BEGINS
from gradguard_lint.models.torch_words import TO_ONE
from gradguard_lint.models.transfers import jax_calls
from gradguard_lint.models.transfers.chances import is_certain
from gradguard_lint.models.transfers.devices import driver_started, gpu_placement, gpu_touched
from gradguard_lint.models.transfers.extents import (
    array_extent,
    drawn_extent,
    element_in,
    element_made,
    element_of,
    flat,
    lies_apart,
    memory_of,
    retyped,
)
from gradguard_lint.models.transfers.tensors import as_figure, tensors_in
from gradguard_lint.words import words
from pytest_gradguard.records import replace

RESEEDED = "<reseeded>"
"""Store key of a generator: the task has put it into a state of its own."""


def generator(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A random generator object."""
    if row.argument[1] and gpu_placement(args.get(*row.argument))[0]:
        driver_started(m, frame, node, f"{name}()", "torch")
    seeded = args.get(0)
    for thing in seeded.things("generator") if seeded is not None else ():
        return of(thing)
    if row.gpu:
        gpu_touched(m, frame, node, f"{name}()", row.framework)
    once = () if in_loop(m, frame) else (("once", constant(True)),)
    site = m.site(frame, node)
    ident = m.ident_at(node)
    m.program.generators.setdefault(node, set()).add(
        0 if m.place.turns.is_several(ident) else ident
    )
    return of(Thing("generator", row.flag or name, ident, m.worker_ident, False, once, site))


def loaded(m: Machine, frame: Frame, node: ast.AST, name: str) -> None:
    """Record where the parent accesses NumPy's global generator, which NumPy 2 creates on first
    access: forked workers then have copies."""
    asked = f"{name}.".startswith(f"{RANDOM}.") or name.partition(".")[0] in LOAD_RANDOM
    if asked and m.place.worker is None:
        m.effect(frame, node, name, Loaded(framework="numpy"))


def begun(m: Machine, frame: Frame, node: ast.AST, name: str, row: Row) -> None:
    """Record where the parent first uses TensorFlow, which creates its global generator."""
    begins = (row.gpu or row.does in BEGINS) and name.startswith(("tensorflow.", "keras."))
    if begins and m.place.worker is None:
        m.effect(frame, node, name, Loaded(framework="tensorflow"))


def may_load(m: Machine, frame: Frame, node: ast.AST, name: str) -> None:
    """Record where the parent imports a library that may import frameworks with global generators:
    other libraries are unknown."""
    top = name.partition(".")[0]
    if m.place.worker is not None or top in sys.stdlib_module_names or top in WITHOUT_NUMPY:
        return
    for framework in ("numpy",) if top in WITHOUT_TORCH else ("numpy", "torch"):
        if not any(
            not m.state.past[event] and event.payload.framework == framework
            for event in of_kinds(m.state.past, Loaded)
            if not event.payload.certain
        ):
            m.effect(frame, node, top, Loaded(certain=False, framework=framework))


def seed(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A seed of one global generator, or of several libraries': in a worker, possibly all."""
    first = args.get(0, "seed")
    value = first if first is not None else NOTHING
    if row.gpu:
        gpu_touched(m, frame, node, f"{name}()", row.framework)
    several = row.flag.split()
    for framework in [""] if several and m.place.worker is not None else several or [row.framework]:
        m.effect(frame, node, f"{name}()", Seed(framework, value))
    return of(Thing("rng", name)) if row.kind == "rng" else NOTHING


def draw(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A draw from a global generator."""
    short = name.rpartition(".")[2]
    if not is_certain(name, args):
        m.effect(frame, node, f"{name}()", Draw(row.framework))
    if row.framework != "numpy":
        among = args.get(0, "seq")
        if short != "choice" or among is None or known_items(among) is None:
            return UNKNOWN
        return item(m, frame, node, among, UNKNOWN)
    return _made(m, node, drawn_extent(short, args), element_made(short, args))


def variates(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A scipy distribution with its parameters, or a draw from one."""
    if name.endswith(".rvs"):
        return drawn_by(m, frame, node, f"{name}()", args, args.get(None, "random_state"))
    return of(Thing(row.kind, name)) if row.kind else UNKNOWN


def frame_method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """A method of a pandas or dask frame, or of its column."""
    if name == "sample" and thing.kind == "frame":
        drawn_by(m, frame, node, "`.sample()`", args, args.get(4, "random_state"))
    if name == "to_dask_array":
        return of(Tensor("dask"))
    return of(thing) if name in FRAMES else None


def drawn_by(
    m: Machine, frame: Frame, node: ast.AST, what: str, args: Args, state: Value | None
) -> Value:
    """A draw from NumPy's global generator, unless another one is passed."""
    has_state = args.open or args.rest is not None or (state is not None and not state.is_none)
    if not has_state and b".random_state" not in frame.module.data:
        m.effect(frame, node, what, Draw("numpy"))
    return UNKNOWN


FRAMES = words(
    "assign astype copy drop dropna fillna persist query rename repartition reset_index sample "
    "set_index sort_values"
)
"""Methods of a frame that return a frame."""


def array(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An array without gradients."""
    if row.framework != "numpy":
        return of(Tensor(row.framework))
    short = name.rpartition(".")[2]
    if short in SUMMARIES and _all_numbers(args):
        return NUMBER
    if short in MAPPED or "mmap_mode" in args.keywords:
        return of(Tensor("numpy"))  # a memory map of the program itself
    if short in KEEPS and len(args.positional) + len(args.keywords) == 1:
        given = args.get(0, "a")
        memory, extent = memory_of(given)
        apart = lies_apart(given)
        if memory is not None and not (apart and short in RESHAPES):
            apart = apart or short in TURNS
            return of(Tensor("numpy", memory=memory, extent=extent, strided=apart))
    made = _made(m, node, array_extent(short, args), element_made(short, args))
    return sequence(made) if short in ("split", "array_split") else made


def _all_numbers(args: Args) -> bool:
    """Whether all arguments are numbers taken from tensors."""
    found = [atom for value in args.values() for atom in inner(value)]
    return any(map(is_number, found)) and all(
        isinstance(atom, (Const, Items)) or is_number(atom) for atom in found
    )


def _made(m: Machine, node: ast.AST, extent: tuple[int, ...], element: str) -> Value:
    """A new array, with a known type of elements, or "" (see `element_in`)."""
    return of(Tensor("numpy", memory=("array", m.ident_at(node), element), extent=extent))


def gpu_array(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An array created on the GPU."""
    gpu_touched(m, frame, node, f"{name}()", row.framework)
    place = m.site(frame, node)
    made = Tensor(row.framework, "none", True, m.worker_ident, m.ident_at(node), place=place)
    tensor = of(made)
    return sequence(tensor) if row.flag else tensor


def array_method(
    m: Machine, frame: Frame, node: ast.AST, tensor: Tensor, name: str, args: Args
) -> Value:
    """A method of a NumPy, CuPy, JAX or dask array."""
    if tensor.framework == "jax":
        return jax_calls.array_method(m, frame, node, tensor, name, args)
    if tensor.framework == "cupy":
        if name in ("get", "tolist", "item"):
            return of(Tensor("numpy"))
        return of(tensor)
    if tensor.framework == "dask":
        if name in ("compute", "persist"):
            return of(Tensor("numpy")) if name == "compute" else of(tensor)
        if name in ("map_blocks", "map_overlap", "to_delayed", "store", "visualize"):
            return UNKNOWN
        return of(tensor)
    if name in ("item", "tolist", "tobytes"):
        return UNKNOWN
    if name in ("astype", "copy"):
        if name == "copy":
            return _made(m, node, tensor.extent, element_in(tensor.memory))
        element = element_of(args.get(0, "dtype"), ELEMENTS)
        return _made(m, node, retyped(tensor.extent, args), element)
    viewed = name in VIEWS and not (
        name in RESHAPES and (tensor.strided or "order" in args.keywords)
    )
    tensor = replace(
        tensor,
        memory=tensor.memory if viewed else None,
        extent=flat(tensor.extent) if name in VIEWS else (),
        strided=viewed and (tensor.strided or name in TURNS),
    )
    found = [value for value, _ in tensors_in(args.values())]
    if name in TO_ONE:
        of_it = tensor.sources | {tensor.ident} - {0}
        one = of(replace(tensor, ident=0, sources=of_it))
        return as_figure(m, [(tensor, NONE)], name, args.positional, args, one)
    return join([of(tensor), *(of(item) for item in found)])


def drawn(m: Machine, frame: Frame, node: ast.AST, thing: Thing, what: str) -> None:
    """A draw from a generator object, in the state in which it was received."""
    if (thing.ident, RESEEDED) not in m.store:
        m.effect(frame, node, what, GeneratorDraw(thing.ident))


_FUNCTIONS = {"numpy": "numpy.random.", "random": "random."}
"""The modules with the functions of a generator's methods, by package."""


def generator_method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value:
    """A draw from a generator object."""
    if name in ("spawn", "split"):
        return sequence(of(Thing("spawned", thing.name)))
    if name in ("manual_seed", "seed", "get_state", "set_state", "bit_generator", "initial_seed"):
        if m.place.worker is not None and name in ("manual_seed", "seed", "set_state"):
            m.store[thing.ident, RESEEDED] = constant(True)
        if name == "manual_seed":
            return of(thing)
        return UNKNOWN
    if not is_certain(_FUNCTIONS.get(thing.name.partition(".")[0], "") + name, args):
        drawn(m, frame, node, thing, f"`.{name}()`")
    extent = drawn_extent(name, args) if thing.name.startswith("numpy") else ()
    if extent:
        return _made(m, node, extent, element_made(name, args))
    if thing.name.startswith("tensorflow"):
        return of(Tensor("tensorflow"))
    return UNKNOWN
