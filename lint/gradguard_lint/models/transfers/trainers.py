"""Accelerate, Lightning and others, which wrap, gather and go backward for a program."""

from __future__ import annotations

import ast

from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.shapes import items
from gradguard_lint.domain.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Frame,
    Instance,
    Items,
    Table,
    Thing,
    Unknown,
    Value,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers import optimizers, options
from gradguard_lint.models.transfers.collectives import cut_off
from gradguard_lint.models.transfers.data_parallel import is_lightning, module_in, wrap
from gradguard_lint.models.transfers.own_gradients import goes_backward


def accelerator(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``Accelerator()``, ``Fabric()``: this process joins a group, where it is launched so."""
    m.effect(frame, node, f"{name}()", LibraryUse("process group"))
    return of(Thing("accelerator", name, m.ident_at(node), m.worker_ident))


def accelerator_method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """``accelerator.name(...)``."""
    first = args.get(0)
    if name in ("gather", "gather_for_metrics") and first is not None:
        return cut_off(m, frame, node, f"accelerator.{name}", first)
    if name == "backward" and first is not None:
        short = thing.name.rpartition(".")[2].lower()
        return goes_backward(m, frame, node, f"`{short}.backward()`", first)
    if name == "setup" and first is not None:
        return first if len(args.positional) == 1 else items("tuple", args.positional)
    if name == "all_gather" and first is not None:
        return _gathered(m, frame, node, args, first)
    if name == "prepare":
        given = [_prepared(m, node, value) for value in args.positional]
        if args.rest is not None or not given:
            return None
        return given[0] if len(given) == 1 else items("tuple", given)
    if name in ("prepare_model", "prepare_optimizer") and first is not None:
        return _prepared(m, node, first)
    if name == "unwrap_model" and first is not None:
        return first.map(lambda atom: module_in(atom) or of(atom))
    return None


def _prepared(m: Machine, node: ast.AST, value: Value) -> Value:
    """What ``prepare`` gives for one of its arguments: loaders set their samplers' epochs."""

    def change(atom: Atom) -> Value:
        if optimizers.optimizers(m, of(atom)):
            return of(atom)
        shown = isinstance(atom, Unknown) and atom.key in m.facts.unknown_modules
        model = isinstance(atom, Thing) and atom.kind == "model"
        if shown or model or isinstance(atom, Instance):
            return wrap(m, node, "accelerate.Accelerator.prepare", atom)
        return UNKNOWN

    return value.map(change)


def lightning_method(
    m: Machine, frame: Frame, node: ast.AST, instance: Instance, name: str, args: Args
) -> Value | None:
    """A method of a LightningModule."""
    first = args.get(0, "data" if name == "all_gather" else "loss")
    if first is None or not is_lightning(m, instance.cls):
        return None
    if name == "all_gather":
        return _gathered(m, frame, node, args, first)
    if name == "manual_backward":
        return goes_backward(m, frame, node, "`self.manual_backward()`", first)
    return None


def _gathered(m: Machine, frame: Frame, node: ast.AST, args: Args, data: Value) -> Value | None:
    """Lightning's ``all_gather``: only with ``sync_grads`` what it gives has a graph."""
    if args.open or len(args.positional) > 2 or "sync_grads" in args.keywords:
        flag = args.get(2, "sync_grads")
        if flag is None or flag.constants() != [False]:
            return None
    return cut_off(m, frame, node, "all_gather", data)


def prepared(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """What gives back a model, and the optimizer beside it, ready for training: a tuple, of four
    where the row says so."""
    model = args.get(*row.argument) or UNKNOWN
    optimizer = args.get(*row.output)
    if row.flag == "four":
        return items("tuple", (model, optimizer or UNKNOWN, UNKNOWN, UNKNOWN))
    if args.open:
        return UNKNOWN
    return model if optimizer is None else items("tuple", (model, optimizer))


_GIVEN = ("model", "loss")
"""What a trainer of Hugging Face's keeps of what it is given."""


def trainer(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``Trainer(model, ...)``."""
    given = {word: args.get(0 if word == "model" else None, word) for word in _GIVEN}
    parts = tuple((word, value) for word, value in given.items() if value is not None)
    return of(Thing("trainer", name, m.ident_at(node), m.worker_ident, parts=parts))


def init_instance(m: Machine, frame: Frame, node: ast.AST, instance: Instance, args: Args) -> Value:
    """``Trainer.__init__`` of an object of a project's subclass."""
    for word in _GIVEN:
        value = args.get(0 if word == "model" else None, word)
        if value is not None:
            m.set_field(instance.ident, word, value)
    own = Thing("accelerator", "accelerate.Accelerator", m.ident_at(node, "own"), m.worker_ident)
    m.set_field(instance.ident, "accelerator", of(own))
    return NOTHING


def trainer_method(
    m: Machine, frame: Frame, node: ast.AST, trainer: Thing | Instance, name: str, args: Args
) -> Value | None:
    """A method of a trainer: it goes backward from the loss that it computes of a batch."""
    if name == "train":
        batch = Args([_part(m, trainer, "model"), UNKNOWN])
        m.place.loop_depth += 1
        try:
            _own(m, frame, node, trainer, "training_step", batch)
        finally:
            m.place.loop_depth -= 1
        return UNKNOWN
    if name == "training_step":
        loss = _own(m, frame, node, trainer, "compute_loss", Args(args.positional[:2]))
        return goes_backward(m, frame, node, "the training step", _first(m, loss))
    if name == "compute_loss":
        loss = _part(m, trainer, "loss")
        if not loss.is_unknown:
            return m.call(frame, node, loss, Args([UNKNOWN, UNKNOWN]))
        model = args.get(0, "model") or UNKNOWN
        return _first(m, m.call(frame, node, model, Args(open=True)))
    return None


def _own(
    m: Machine, frame: Frame, node: ast.AST, trainer: Thing | Instance, name: str, args: Args
) -> Value:
    """A method of the trainer: its class's own, or the library's."""
    own = m.find_in_class(trainer.cls, name) if isinstance(trainer, Instance) else None
    if own is not None and isinstance(trainer, Instance):
        return m.call(frame, node, m.bind(frame, node, own, trainer), args)
    return trainer_method(m, frame, node, trainer, name, args) or UNKNOWN


def _part(m: Machine, trainer: Thing | Instance, word: str) -> Value:
    found = trainer.part(word) if isinstance(trainer, Thing) else m.read(trainer.ident, word)
    return found or UNKNOWN


def _first(m: Machine, outputs: Value) -> Value:
    """The loss in what a model or a ``compute_loss`` gives: by its name, or the first."""

    def loss(atom: Atom) -> Value:
        if isinstance(atom, Table):
            return atom.get("loss") or UNKNOWN
        if isinstance(atom, Items):
            return atom.items[0] if atom.items else UNKNOWN
        if isinstance(atom, Instance):
            return m.read(atom.ident, "loss") or UNKNOWN
        if isinstance(atom, Thing) and atom.kind == "namespace":
            return options.namespace_attribute(m, atom, "loss")
        return of(atom)

    return outputs.map(loss)
