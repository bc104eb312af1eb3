"""Remote functions and actors."""

from __future__ import annotations

import ast

from gradguard_lint.domain.values import (
    UNKNOWN,
    Class,
    Const,
    Frame,
    Instance,
    Method,
    Thing,
    Value,
    constant,
    of,
)
from gradguard_lint.engine.machine import Machine
from gradguard_lint.engine.ports import Args
from gradguard_lint.engine.stub_calls import Caller
from gradguard_lint.engine.tasks import hand_out
from gradguard_lint.engine.turns import in_loop
from gradguard_lint.models.known import registry_of, start_called
from gradguard_lint.models.rows import Row
from gradguard_lint.models.transfers.handing import task_given
from gradguard_lint.models.transfers.work import future
from pytest_gradguard.records import replace


def remote(m: Machine, frame: Frame, node: ast.AST, name: str, args: Args, row: Row) -> Value:
    """``remote(f)``, or ``remote(num_gpus=1)`` that is then given a function."""
    function = args.get(0)
    untold = args.open and row.flag not in args.keywords  # it may be among what is unpacked
    meant = untold or any(
        not (isinstance(atom, Const) and not atom.value)
        for key, value in args.keywords.items()
        if key == row.flag
        for atom in value.atoms
    )
    parts = [("meant", constant(meant))]
    if function is not None:
        parts.append(("function", function))
    return of(Thing("remote", name, parts=tuple(parts)))


def remote_method(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, name: str, args: Args
) -> Value | None:
    """``f.remote(...)``, ``f.options(...)``."""
    row = registry_of(m).row(thing.name)
    if row is None:
        return None
    if name == "options":
        again = remote(m, frame, node, thing.name, Args([], args.keywords, open=args.open), row)
        made = again.choices[0].atom
        assert isinstance(made, Thing)
        function = thing.part("function")
        parts = dict(made.parts)
        if function is not None:
            parts["function"] = function
        if row.flag not in args.keywords and not args.open:
            parts["meant"] = thing.part("meant") or constant(False)
        return of(replace(made, parts=tuple(parts.items())))
    function = thing.part("function")
    if name != "remote" or function is None:
        return None
    calls, returned = len(m.program.calls), set(m.program.returned)
    result = _remotely(m, frame, node, thing, row, function, args)
    if any(function.of(Class)):
        for ident in set(m.program.returned) - returned:
            # It stays there with the actor: a handle comes back.
            _, m.program.sent_back[ident] = m.program.returned.pop(ident)
        after = m.place.ended.task_state
        for instance in result.of(Instance) if after is not None else ():
            for field in list(m.facts.attribute_names.get(instance.ident, ())):
                value = after.store.get((instance.ident, field)) if after is not None else None
                if value is not None:
                    m.set_field(instance.ident, field, value)
        meant = thing.part("meant") or constant(False)
        making = m.program.calls[calls:]
        tasks = (task for call in making for task in call.tasks)
        if any(effect.gpu_use == "context" for task in tasks for effect in task.effects):
            meant = constant(True)  # what its methods use is there since it was made
        kept = (
            ("instance", result),
            ("meant", meant),
            ("made", constant(making[0].ident if making else -1)),
        )
        return of(Thing("actor", thing.name, m.ident_at(node), parts=kept))
    return future(result)


def actor_call(
    m: Machine, frame: Frame, node: ast.AST, actor: Thing, name: str, args: Args
) -> Value:
    """``actor.method.remote(...)``."""
    row = registry_of(m).row(actor.name)
    instance = actor.part("instance")
    if row is None or instance is None:
        return UNKNOWN
    function = m.attribute(frame, node, instance, name)
    return future(_remotely(m, frame, node, actor, row, function, args))


def _remotely(
    m: Machine, frame: Frame, node: ast.AST, thing: Thing, row: Row, function: Value, args: Args
) -> Value:
    args = args.told_apart()
    task = task_given(m, Caller(frame, node, args), function, args)
    meant, made = thing.part("meant"), thing.part("made")
    ident = made.constant if made is not None else 0
    return hand_out(
        m,
        frame,
        node,
        [task],
        start_called(m, row.start),
        thing.name.rpartition(".")[0],
        many=in_loop(m, frame),
        meant=meant is not None and bool(meant.constant),
        made=ident if isinstance(ident, int) else -1,
    )


def method_of_method(
    m: Machine, frame: Frame, node: ast.AST, receiver: Method, name: str, args: Args
) -> Value | None:
    """``actor.method.remote(...)``."""
    actor = receiver.receiver
    if name == "remote" and isinstance(actor, Thing) and actor.kind == "actor":
        return actor_call(m, frame, node, actor, receiver.name, args)
    return None
