"""Loaders: their workers call a dataset, and what collates and prepares."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import of_kinds
from gradguard_lint.domain.payloads import Compute, LibraryUse
from gradguard_lint.domain.shapes import sequence
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Bound,
    Choice,
    Const,
    External,
    Frame,
    Function,
    Instance,
    Items,
    Partial,
    TaskCall,
    Tensor,
    Thing,
    Unknown,
    Value,
    join,
    of,
    unknown,
)
from gradguard_lint.engine.arguments import argument_node
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tasks import hand_out
from gradguard_lint.engine.tree import descend
from gradguard_lint.models.known import registry_of
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.devices import driver_started
from gradguard_lint.models.transfers.starting import start_value, starts_of, where_not
from gradguard_lint.models.transfers.tensors import value_used
from pytest_gradguard.records import replace

LOADER = "torch.utils.data"

_LOADER = "<loader>"
"""The name under which an object of a project's subclass has the loader that it is."""

INFO = "worker-info"
DATASET = "dataset"
_DATASET = "<dataset>"

_ARGUMENTS = (
    (0, "dataset"),
    (3, "sampler"),
    (4, "batch_sampler"),
    (5, "num_workers"),
    (6, "collate_fn"),
    (7, "pin_memory"),
    (None, "worker_init_fn"),
    (None, "multiprocessing_context"),
)


def loader(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``DataLoader(dataset, ...)``."""
    parts = {"start": start_value(m, row, args)}
    order = row.flag.split()
    for position, word in _ARGUMENTS:
        if f"-{word}" in order:
            continue
        if order:
            position = order.index(word) if word in order else None
        value = args.get(position, word)
        if value is not None:
            parts[word] = value
    return of(
        Thing(
            "loader",
            name,
            m.ident_at(node),
            m.worker_ident,
            parts=tuple(parts.items()),
            site=m.site(frame, node),
        )
    )


def worker_info(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``get_worker_info()``: in a worker, what tells the dataset that it has."""
    dataset = m.read(0, _DATASET)
    if m.place.worker is None or dataset is None:
        return UNKNOWN
    return of(Thing(INFO, name, parts=(("dataset", dataset),)))


def info_attribute(info: Thing, node: ast.AST, name: str) -> Value:
    """An attribute of what ``get_worker_info()`` gives."""
    return info.part(name) or unknown(("attr", ("node", id(node)), name))


def init_instance(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """``DataLoader.__init__`` of an object of a project's subclass."""
    registry = registry_of(m)
    bases = (b.name for b in instance.cls.outside() if isinstance(b, External))
    loaders = (name for name in map(registry.canonical, bases) if registry.base(name) == "loader")
    name = next(loaders, f"{LOADER}.DataLoader")
    m.store[instance.ident, _LOADER] = loader(m, frame, node, name, args, registry.exact[name])
    return NOTHING


def loaders_in(m: Machine, value: Value) -> Iterator[Thing]:
    """The loaders in `value`: torch's own, and what objects of subclasses are."""
    yield from value.things("loader")
    for instance in value.of(Instance):
        if instance.cls.what == "loader" and _gives_batches(m, instance):
            yield from (m.read(instance.ident, _LOADER) or UNKNOWN).things("loader")


def _gives_batches(m: Machine, instance: Instance) -> bool:
    """Whether to iterate an object of a subclass is to iterate the loader that it is."""
    own = m.find_in_class(instance.cls, "__iter__")
    if own is None:
        return True
    return any(
        isinstance(part, ast.Attribute)
        and part.attr == "__iter__"
        and not isinstance(part.value, ast.Attribute)
        for function in own.of(Function)
        for part in descend(function.node)
    )


def dataset(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """A dataset that has tensors, or takes its samples from others: ``Subset``; or several."""
    if row.flag == "tensors":
        given = sequence(join(args.positional) if args.positional else UNKNOWN)
    else:
        given = args.get(*row.argument) or UNKNOWN
    made = of(Thing(DATASET, name, parts=(("samples", given),)))
    return sequence(made) if row.flag == "several" else made


def collate(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``default_collate(...)``: it stacks the samples where they lie."""
    samples = element_of(m, args.get(*row.argument) or UNKNOWN)
    value_used(m, frame, node, [samples])
    return UNKNOWN


def _sources(m: Machine, value: Value, depth: int = 3) -> Iterator[Choice]:
    """The project's datasets, and the tensors, that the samples of `value` come from."""
    for choice in m.filtered(value).choices:
        atom = choice.atom
        if isinstance(atom, (Instance, Tensor)):
            yield choice
        elif isinstance(atom, Thing) and atom.kind == DATASET and depth:
            samples = atom.part("samples") or UNKNOWN
            inside = [samples, *([element_of(m, samples)] if any(samples.of(Items)) else ())]
            for part in inside:
                for found in _sources(m, part, depth - 1):
                    yield Choice(found.atom, found.when | choice.when)


def iterate_loader(m: Machine, frame: Frame, node: ast.AST, thing: Thing) -> None:
    """The loader's workers start here, and its batches may be pinned."""
    _start_workers(m, frame, node, thing)
    pinned = thing.part("pin_memory")
    if pinned is not None and pinned.constant is True:
        driver_started(m, frame, node, "DataLoader(..., pin_memory=True)", "torch")


def _start_workers(m: Machine, frame: Frame, node: ast.AST, thing: Thing) -> None:
    """The workers start here, and call the loader's dataset."""
    count = thing.part("num_workers")
    when = where_not(count, (0, None)) if count is not None else None
    if count is None or when is None:
        _collate_here(m, frame, node, thing)
        return
    if m.in_process_worker and all(
        isinstance(atom, Const) and isinstance(atom.value, int) and atom.value > 0
        for atom in count.atoms
    ):
        m.effect(frame, node, ast.unparse(node), LibraryUse("loader workers", (of(thing),)))
    starts = starts_of(m, thing.part("start"))
    site = thing.site or m.site(frame, node)
    if not starts:
        return
    tasks = []
    sample = UNKNOWN
    dataset = thing.part("dataset") or UNKNOWN
    m.store[0, _DATASET] = dataset
    first = thing.part("worker_init_fn")
    several = count.constant != 1 and not _takes_dataset(first)
    sources = list(_sources(m, dataset))
    for instance in (it.atom for it in sources if isinstance(it.atom, Instance)):
        for wanted, given in (("__getitem__", (UNKNOWN,)), ("__iter__", ())):
            function = m.find_in_class(instance.cls, wanted)
            if function is not None:
                bound = m.bind(frame, node, function, instance)
                # Workers that iterate may have to draw the same: to shuffle, and take a shard.
                again = several and wanted == "__getitem__"
                tasks.append(TaskCall(bound, given, (), site, library=LOADER, repeated=again))
    collate = thing.part("collate_fn")
    if collate is not None and _followed(collate):
        tasks.append(TaskCall(collate, (sequence(sample),), (), site, library=LOADER))
    tensors = [it for it in sources if isinstance(it.atom, Tensor)]
    if tensors and collate is None:
        stacks = of(External(f"{LOADER}.default_collate"))
        given = (sequence(Value(tuple(tensors))),)
        written = argument_node(site.node, 0, "dataset")
        names = (ast.unparse(written) if isinstance(written, ast.Name) else "dataset",)
        tasks.append(TaskCall(stacks, given, (), site, library=LOADER, names=names))
    initializer = None
    if first is not None and _followed(first):
        number = unknown(("worker", id(node)))
        initializer = TaskCall(first, (number,), (), site, library=LOADER)
        if not tasks:
            tasks, initializer = [initializer], None
    for start, way in starts:
        hand_out(
            m,
            frame,
            node,
            tasks,
            replace(start, workers="DataLoader workers"),
            LOADER,
            when=when | way,
            initializer=initializer,
            ships=start.name not in INHERITING,
            answers=False,
            forking_pickler=True,
            prepared=True,
        )


def _collate_here(m: Machine, frame: Frame, node: ast.AST, thing: Thing) -> None:
    """Without workers, what collates runs where the loader is iterated."""
    collate = thing.part("collate_fn")
    if collate is None or not _followed(collate):
        return
    before = m.state.copy()
    m.call(frame, node, collate, Args([sequence(UNKNOWN)]))
    if m.dead:  # what it is given is not known
        m.state = before
    for event in of_kinds(m.state.past.keys() - before.past.keys(), Compute):
        if not event.payload.threads_only:
            del m.state.past[event]  # of single samples, as a rule: no compute threads


def _takes_dataset(initializer: Value | None) -> bool:
    """Whether the workers' initializer may give the dataset another generator: it is not known, or
    takes the dataset to whatever it does with it."""
    if initializer is None:
        return False
    return any(
        isinstance(atom, Unknown)
        or (
            isinstance(atom, Function)
            and any(
                isinstance(part, ast.Attribute) and part.attr == "dataset"
                for part in descend(atom.node)
            )
        )
        for atom in initializer.atoms
    )


def _followed(function: Value) -> bool:
    return any(isinstance(atom, (Function, Bound, Instance, Partial)) for atom in function.atoms)
