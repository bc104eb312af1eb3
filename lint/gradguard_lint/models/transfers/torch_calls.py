"""torch: functions, and creation of tensors and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from math import prod

from gradguard_lint.domain.conditions import NONE
from gradguard_lint.domain.payloads import ComputeThreads, Draw, MemoryUse
from gradguard_lint.domain.shapes import inner, sequence
from gradguard_lint.domain.values import (
    FIGURE,
    GRADIENT,
    GRADIENTS,
    NOTHING,
    NUMBER,
    UNKNOWN,
    Atom,
    Choice,
    Const,
    Frame,
    Items,
    Method,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    is_number,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.torch_words import (
    ARRANGES,
    BY_SIZE,
    DATA,
    DRAWS,
    DRAWS_OF,
    DROPOUTS,
    FILLED,
    GIVE_ONE,
    HEAVY,
    NOT_SMOOTH,
    ONE_OF_ALL,
    SETTINGS,
    WITH_FUNCTIONS,
)
from gradguard_lint.models.transfers import (
    arrays,
    collectives,
)
from gradguard_lint.models.transfers.chances import is_certain
from gradguard_lint.models.transfers.devices import (
    as_written,
    chosen_gpu,
    cpu_when,
    driver_started,
    gpu_at_index,
    gpu_name,
    gpu_placement,
    gpu_text,
    gpu_touched,
)
from gradguard_lint.models.transfers.extents import lies_apart, memory_of, same_element
from gradguard_lint.models.transfers.tensor_uses import all_on_gpu, gpu_used, worked, written
from gradguard_lint.models.transfers.tensors import (
    LARGE_FROM,
    SMALL,
    as_figure,
    as_large,
    combine,
    each_tensor,
    is_large,
    known_count,
    requires_grad,
    several,
    tensors_in,
    unsettled,
    unsure_of_grad,
    with_sources,
)
from gradguard_lint.models.transfers.torch_modules import LOCKS
from gradguard_lint.words import words
from pytest_gradguard.records import replace


def gpu(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A call that initialises CUDA: possibly only for a query, without a context, or to select the
    GPU."""
    chosen = args.get(*row.argument) if row.flag == "chooses" else None
    gpu_touched(
        *(m, frame, node, f"{name}()", row.framework),
        chosen=chosen or NOTHING,
        asks=row.flag in ("asks", "asks-bare"),
        bare=row.flag == "asks-bare",
    )
    return UNKNOWN


def gpu_driver(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A call that starts the GPU driver without a context."""
    driver_started(m, frame, node, f"{name}()", row.framework)
    return UNKNOWN


def fork_rng(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``torch.random.fork_rng()``: reads the states of all GPUs, unless devices are passed."""
    enabled = args.get(1, "enabled")
    if args.get(*row.argument) is None and (enabled is None or enabled.constant is True):
        driver_started(m, frame, node, f"{name}()", row.framework)
    return UNKNOWN


def threads(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """Record that compute threads are limited, to one or an unknown number, or that there are
    several."""
    count = args.get(*row.argument) or args.get(0) or UNKNOWN
    libraries = args.get(1, "user_api") if row.flag else None
    if libraries is not None and libraries.constant == "blas":
        return NOTHING  # torch computes with OpenMP threads
    if isinstance(count.constant, int) and count.constant > 1:
        m.effect(frame, node, name, ComputeThreads(row.framework, several=True))
    else:
        m.effect(frame, node, name, ComputeThreads(row.framework))
    return NOTHING


def optimizer(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """An optimizer with its parameters."""
    parts = [("parameters", args.get(0, "params") or UNKNOWN)]
    if "use_locking" in args.keywords:
        parts.append((LOCKS, args.keywords["use_locking"]))
    return of(Thing("optimizer", name, m.ident_at(node), m.worker_ident, parts=tuple(parts)))


def parameter(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``Parameter(...)``, or a list or dict of them."""
    data = args.get(0, "data")
    of_data = [] if data is None or row.flag else list(data.tensors())
    gpu = any(tensor.gpu for tensor in of_data)
    small = bool(of_data) and all(tensor.small for tensor in of_data)
    made = Tensor("torch", "parameter", gpu, m.worker_ident, m.ident_at(node), small=small)
    under = {tensor.memory for tensor in of_data}
    if len(under) == 1 and m.in_process_worker:
        made = replace(made, memory=under.pop())
        m.effect(frame, node, ast.unparse(node), MemoryUse("parameter", of(made)))
    value = of(made)
    if row.flag == "list":
        return sequence(value)
    return of(Table((), value)) if row.flag else value


def variable(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``torch.autograd.Variable(...)``."""
    return of(Tensor("torch", requires_grad(args), False, m.worker_ident, m.ident_at(node)))


def applied(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A function that calls its argument with the other arguments."""
    function = args.get(*row.argument) or UNKNOWN
    return m.call(frame, node, function, Args(args.positional[1:], {}, args.rest))


def distribution(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A distribution: samples may carry its parameters' graph."""
    tensor = combine(m, tensors_in(args.values()), framework="torch")
    return of(
        Thing("distribution", name, m.ident_at(node), m.worker_ident, parts=(("tensor", tensor),))
    )


def load(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``torch.load(...)``."""
    location = args.get(*row.argument)
    on_gpu, when = gpu_placement(location, m)
    if on_gpu:
        what = f"{name}(..., {row.argument[1]}={as_written(node, location)})"
        gpu_touched(m, frame, node, what, "torch", location, when)
    return guarded(UNKNOWN, when)


def tensor_function(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """A torch function on tensors."""
    home, _, short = name.rpartition(".")
    if home == "torch.Tensor" and args.positional and any(args.positional[0].tensors()):
        given = Args(args.positional[1:], args.keywords, args.rest)
        return args.positional[0].map(
            lambda atom: (
                m.models.call_method(m, frame, node, Method(atom, short), given)
                if isinstance(atom, Tensor)
                else UNKNOWN
            )
        )
    if short.startswith(("set_", "get_", "is_", "use_", "_")):
        return UNKNOWN
    return function(m, frame, node, short, args, linalg=row.flag == "heavy")


def gives_one(name: str, args: Args, row: Row) -> bool:
    """Whether the function `name` returns one tensor for any arguments."""
    home, _, short = name.rpartition(".")
    if home not in WITH_FUNCTIONS:
        return name in ("torch.nn.Parameter", "torch.autograd.Variable")
    of_all = short in ONE_OF_ALL and len(args.positional) == 1 and not args.keywords
    if short == "where":
        return len(args.positional) > 1
    return row.does == "tensor" or short in GIVE_ONE or of_all


def total_norm(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A function that returns the norm of all gradients of parameters."""
    return of(Tensor("torch", "none", False, m.worker_ident, sources=frozenset({FIGURE})))


def _of_tensors(short: str, args: Args) -> Iterator[Value]:
    """The arguments that may be, or contain, tensors with history."""
    if short in ARRANGES and args.positional:
        yield args.positional[0]  # the others are sizes and positions
    else:
        yield from args.positional
        if args.rest is not None:
            yield args.rest
    for name, value in args.keywords.items():
        if name not in SETTINGS:
            yield value


def _each(args: Args) -> list[Value]:
    """The operands: the arguments, with literal lists of tensors expanded."""
    found: list[Value] = []
    for value in args.values():
        only = value.only
        found += only.items or () if isinstance(only, Items) else (value,)
    return found


def function(
    m: Machine, frame: Frame, node: ast.AST, short: str, args: Args, *, linalg: bool = False
) -> Value:
    """A torch function on tensors: its result has history if an argument requires grad."""
    found = tensors_in(args.values())
    anything = any(unsettled(value) for value in _of_tensors(short, args))
    operands = _each(args)
    by_size = short.rstrip("_") in BY_SIZE and is_large(operands)
    heavy = short in HEAVY or linalg or by_size
    mode = args.get(2, "training") if short in DROPOUTS else constant(False)
    drops = mode is None or mode.constant is True
    if drops or (short in DRAWS_OF and "generator" not in args.keywords):
        on = all_on_gpu(found)
        m.effect(frame, node, f"torch.{short}()", Draw("torch", on))
    smooth = short not in NOT_SMOOTH
    given = found or [(Tensor("torch", "unknown"), NONE)]
    worked(m, frame, node, given, heavy=heavy, by_size=by_size)
    out = args.get(None, "out")
    if short.endswith("_") and args.positional:
        written(m, frame, node, f"`{short}`", args.positional[0])
    if args.constant(None, "inplace") is True and args.positional:
        written(m, frame, node, f"`{short}(..., inplace=True)`", args.positional[0])
    if out is not None:
        written(m, frame, node, f"`{short}(..., out=...)`", out)
        return out
    value = combine(m, found, smooth=smooth, framework="torch")
    value = as_large(short, operands, value)
    value = as_figure(m, found, short, args.positional[1:], args, value)
    if smooth and anything and m.modes.grad:
        value = each_tensor(value, lambda it: replace(unsure_of_grad(it), maybe=frozenset()))
    if smooth:
        value = with_sources(m, value, _of_tensors(short, args))
    if short in JOINING and found and all(_is_of_gradients(tensor) for tensor, _ in found):
        value = each_tensor(value, lambda it: replace(it, ident=GRADIENTS))
    value = collectives.with_own_slot(m, node, args.values(), value, short)
    return several(m, found, short, args.get(1, "dim"), value)


JOINING = words("cat concat concatenate hstack stack vstack")
"""Functions that join several tensors."""


def _is_of_gradients(tensor: Tensor) -> bool:
    return not {GRADIENT, GRADIENTS}.isdisjoint((tensor.ident, *tensor.sources))


def device(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``torch.device(...)``."""
    value = args.get(0, "type", "device") or UNKNOWN
    index = args.get(1, "index")

    def change(atom: Atom) -> Value:
        if index is not None and gpu_name(atom):
            return gpu_at_index(index)
        if isinstance(atom, Const):
            text = f"cuda:{atom.value}" if isinstance(atom.value, int) else str(atom.value)
            return of(Thing("device", text, gpu=gpu_name(atom)))
        if gpu_name(atom) and not isinstance(atom, Thing):
            return gpu_at_index(chosen_gpu(of(atom)))
        return of(atom)

    return value.map(change)


def default_device(
    m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row
) -> Value:
    """``torch.set_default_device(...)``, or a default type, which has a device, too."""
    given = args.get(*row.argument) or UNKNOWN
    if not name.endswith("device"):
        known = [getattr(atom, "name", getattr(atom, "value", "")) for atom in given.atoms]
        given = constant("cuda" if all(".cuda." in str(it) for it in known) else "cpu")
    m.modes = replace(m.modes, device=given)
    return NOTHING


def device_by_default(m: Machine) -> Value | None:
    """The default device of new tensors."""
    return m.filtered(m.modes.device) if m.modes.device is not None else None


def tensor(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A torch function that creates a tensor without history."""
    short = name.rpartition(".")[2]
    if row.flag:
        made = Tensor("torch", "none", False, m.worker_ident, m.ident_at(node))
        made = replace(made, large=row.flag == "shares" and _has_many(args.get(0)))
        return of(shared(m, frame, node, made, args) if row.flag == "shares" else made)
    grad = requires_grad(args)
    device = args.get(2 if short == "as_tensor" else None, "device")
    inherited = short.endswith("_like") and device is None
    written = device is not None
    if not written and not inherited and short not in ("as_tensor", "asarray"):
        device = device_by_default(m)
    gpu, when = gpu_placement(device, m)
    if inherited:
        like = [tensor for tensor, _ in tensors_in(args.values())]
        gpu = any(tensor.gpu for tensor in like)
        gpu_used(m, frame, node, like)
    elif gpu:
        named = as_written(node, device) if "device" in args.keywords else gpu_text(device)
        what = f"{name}(..., device={named})" if written else f"{name}(...)"
        gpu_touched(m, frame, node, what, "torch", device, when, device_written=written)
    if args.get(None, "pin_memory") == constant(True):
        gpu_touched(m, frame, node, f"{name}(..., pin_memory=True)", "torch")
    certain = is_certain(f"torch.{short}", args)
    if short in DRAWS and "generator" not in args.keywords and not certain:
        on = all_on_gpu(tensors_in(args.values())) if inherited else UNKNOWN
        if not inherited and gpu and not when:
            on = of(Tensor("torch", "none", True, m.worker_ident))
        m.effect(frame, node, f"{name}()", Draw("torch", on))
    generator = args.get(None, "generator")
    if generator is not None and not certain:
        drawn(m, frame, node, generator)
    first = args.get(0)
    place = m.site(frame, node) if gpu else None
    if short in ("as_tensor", "asarray") and first is not None:
        found = tensors_in([first])
        if found:
            value = combine(m, found, framework="torch")
            if gpu and not when:
                return each_tensor(value, lambda it: replace(it, gpu=True, place=place))
            if all(tensor.framework == "numpy" for tensor, _ in found):
                return value.map(lambda atom: of(shared(m, frame, node, atom, args)))
            return value
    large = False
    if inherited:
        small = all(tensor.small for tensor, _ in tensors_in(args.values()))
        large = is_large(args.positional[:1])
    elif short in DATA:
        small = first is not None and _few(first)
        large = _has_many(first)
    else:
        sizes = args.positional * 2 if short == "eye" else args.positional
        size = args.get(None, "size")
        count = _count(short, sizes) if size is None else known_count([size])
        small = count is not None and count <= SMALL
        large = count is not None and count >= LARGE_FROM
    made = Tensor(
        *("torch", grad, gpu, m.worker_ident, m.ident_at(node)),
        place=place,
        small=small,
        large=large,
        cpu=cpu_when(device),
    )
    if large and short in FILLED:
        worked(m, frame, node, [(made, NONE)], heavy=True, by_size=True)
    if not when or not gpu:
        return of(made)
    return Value((Choice(made, when), Choice(replace(made, gpu=False, place=None), frozenset())))


def _has_many(array: Value | None) -> bool:
    """Whether this is an array that is known to be large."""
    _, extent = memory_of(array)
    return bool(extent) and prod(extent[:-1]) >= LARGE_FROM


def _count(short: str, sizes: list[Value]) -> int | None:
    """The number of elements that the function `short` creates with `sizes`."""
    if short in _SIZE_AT:
        sizes = sizes[_SIZE_AT[short] :][:1]
    count = known_count(sizes) if sizes else None
    bound = short in ("arange", "range") and len(sizes) > 1  # the product is an upper bound
    return None if bound and count is not None and count > SMALL else count


_SIZE_AT = {"full": 0, "randint": -1, "linspace": 2, "logspace": 2, "normal": 2}
"""The position of the size in functions with other numeric arguments."""


def shared(m: Machine, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Atom:
    """The tensor `atom` on the memory of its source array, unless it is a copy."""
    memory, _ = memory_of(args.get(0))
    known = {"data", "a", "obj", "dtype", "device"}.issuperset(args.keywords)
    if memory is None or not isinstance(atom, Tensor) or not known or args.open or args.rest:
        return atom
    dtype = args.get(1, "dtype")
    if dtype is not None and not dtype.is_none and not same_element(memory, dtype):
        return atom
    device = args.get(2, "device")
    if device is not None and not device.is_none and device.constant != "cpu":
        return atom
    made = replace(atom, memory=memory, strided=lies_apart(args.get(0)))
    if m.in_process_worker:
        m.effect(frame, node, ast.unparse(node), MemoryUse("shared", of(made)))
    return made


def _few(data: Value) -> bool:
    """Whether this is a number, or a short literal list."""
    return all(
        isinstance(atom, Const)
        or atom in NUMBER.atoms
        or (isinstance(atom, Items) and atom.items is not None)
        or (isinstance(atom, Unknown) and is_number(atom))
        for atom in inner(data)
    )


def drawn(m: Machine, frame: Frame, node: ast.AST, generator: Value) -> None:
    """Record a draw from a generator object."""
    for thing in generator.things("generator"):
        arrays.drawn(m, frame, node, thing, thing.name)
