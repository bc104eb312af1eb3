"""Loaders: their workers call a dataset, and functions that collate and initialize."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import of_kinds
from gradguard_lint.domain.payloads import Compute, LibraryUse
from gradguard_lint.domain.shapes import sequence
from gradguard_lint.domain.starts import INHERITING
from gradguard_lint.domain.values import (
    NOTHING,
    STUB,
    UNKNOWN,
    Bound,
    Choice,
    Const,
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
    of,
    unknown,
)
from gradguard_lint.engine.arguments import argument_node
from gradguard_lint.engine.containers import element_of
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.tasks import dispatch_tasks
from gradguard_lint.engine.tree import descend
from gradguard_lint.models.transfers.starting import starts_of, where_not
from pytest_gradguard.records import replace

LIBRARY = "torch.utils.data"
LOADER = f"{LIBRARY}.DataLoader"

START = "_start"
"""The attribute with a loader's start method."""

_DATASET = (0, "<dataset>")
"""The place of the dataset in a worker's store."""


def worker_info(m: Machine, node: ast.AST) -> Value:
    """The worker info in a loader's worker, with its dataset."""
    dataset = m.read(*_DATASET)
    if m.place.worker is None or dataset is None:
        return UNKNOWN
    return of(Thing("namespace", "WorkerInfo", m.ident_at(node), parts=(("dataset", dataset),)))


def _sources(m: Machine, value: Value, depth: int = 3) -> Iterator[Choice]:
    """The project's datasets, and tensors, that samples of `value` come from."""
    for choice in m.filtered(value).choices:
        atom = choice.atom
        if isinstance(atom, (Instance, Tensor)):
            yield choice
        if not depth or not isinstance(atom, Instance) or atom.cls.what != STUB:
            continue
        for _, held in () if _readers(m, atom) else m.fields(atom.ident):
            for part in (held, *([element_of(m, held)] if any(held.of(Items)) else ())):
                for found in _sources(m, part, depth - 1):
                    yield Choice(found.atom, found.when | choice.when)


def _readers(m: Machine, dataset: Instance) -> list[tuple[str, Value]]:
    """The program's methods that return samples of `dataset`."""
    found = ((name, m.find_in_class(dataset.cls, name)) for name in ("__getitem__", "__iter__"))
    return [(name, function) for name, function in found if function is not None]


def iterate(m: Machine, frame: Frame, node: ast.AST, loader: Instance) -> None:
    """The workers of `loader` start, and call its dataset; without workers, it does so itself."""

    def part(name: str) -> Value:
        return m.read(loader.ident, name) or NOTHING

    count, collate, first = part("num_workers"), part("collate_fn"), part("worker_init_fn")
    when = where_not(count, (0, None))
    if when is None:
        _collate_here(m, frame, node, collate)
        return
    site = m.facts.origins.get((loader.ident, START)) or m.site(frame, node)
    if m.in_process_worker and all(
        isinstance(atom, Const) and isinstance(atom.value, int) and atom.value > 0
        for atom in count.atoms
    ):
        context = part("multiprocessing_context")
        use = LibraryUse("loader workers", (context,), site)
        m.effect(frame, node, ast.unparse(node), use)
    starts = starts_of(m, part(START))
    if not starts:
        return
    tasks = []
    dataset = m.store[_DATASET] = part("dataset")
    several = count.constant != 1 and not _takes_dataset(first)
    sources = list(_sources(m, dataset))
    for instance in (it.atom for it in sources if isinstance(it.atom, Instance)):
        for wanted, function in _readers(m, instance):
            bound = m.bind(frame, node, function, instance)
            # Workers that iterate may have to draw equal numbers: to shuffle, and select a shard.
            by_index = wanted == "__getitem__"
            given = (UNKNOWN,) if by_index else ()
            again = several and by_index
            tasks.append(TaskCall(bound, given, (), site, library=LIBRARY, repeated=again))
    if _followed(collate):
        tasks.append(TaskCall(collate, (sequence(UNKNOWN),), (), site, library=LIBRARY))
    tensors = [it for it in sources if isinstance(it.atom, Tensor)]
    if tensors and collate.is_none:
        stacks = m.models.external(m, f"{LIBRARY}.default_collate")
        given = (sequence(Value(tuple(tensors))),)
        written = argument_node(site.node, 0, "dataset")
        names = (ast.unparse(written) if isinstance(written, ast.Name) else "dataset",)
        tasks.append(TaskCall(stacks, given, (), site, library=LIBRARY, names=names))
    initializer = None
    if _followed(first):
        number = unknown(("worker", id(node)))
        initializer = TaskCall(first, (number,), (), site, library=LIBRARY)
        if not tasks:
            tasks, initializer = [initializer], None
    for start, way in starts:
        dispatch_tasks(
            *(m, frame, node, tasks, replace(start, workers="DataLoader workers"), LIBRARY),
            when=when | way,
            initializer=initializer,
            ships=start.name not in INHERITING,
            answers=False,
            forking_pickler=True,
            prepared=True,
        )


def _collate_here(m: Machine, frame: Frame, node: ast.AST, collate: Value) -> None:
    """Without workers, the collate function runs where the loader is iterated."""
    if not _followed(collate):
        return
    before = m.state.copy()
    m.call(frame, node, collate, Args([sequence(UNKNOWN)]))
    if m.dead:  # because its arguments are unknown
        m.state = before
    for event in of_kinds(m.state.past.keys() - before.past.keys(), Compute):
        if not event.payload.threads_only:
            del m.state.past[event]  # usually of single samples: no compute threads


def _takes_dataset(initializer: Value) -> bool:
    """Whether the workers' initializer may replace the dataset's generator: it is unknown, or
    accesses the dataset."""
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
