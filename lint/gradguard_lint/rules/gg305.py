"""One generator object is sent to several tasks: each gets a copy in the same state."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import GeneratorDraw
from gradguard_lint.domain.values import TaskCall, Thing
from gradguard_lint.fixes.changes import Change, Fix, Replace, Wrap
from gradguard_lint.fixes.written import argument, importing, source_of, spelled
from gradguard_lint.rules.base import (
    Report,
    as_written,
    capitalised,
    captures,
    code,
    sending_step,
    variables,
)
from gradguard_lint.rules.own_parts import takes_its_own_part

CODE = "GG305"


def check(program: Program) -> Iterator[Report]:
    for task in program.process_tasks():
        if not task.call.many:
            continue
        draws = {
            effect.payload.generator: (by, effect)
            for by in reversed([task, *program.of_actor(task.call.ident)])
            for effect in of_kinds(reversed(by.effects), GeneratorDraw)
            if not takes_its_own_part(task, effect)
        }
        crossing = [
            (sent, *it) for sent, given in task.split_by_initializer(task.given) for it in given
        ]
        for sent, path, atom, private in crossing:
            if not isinstance(atom, Thing) or atom.kind != "generator":
                continue
            if private and not _is_the_only_one(program, task, path, atom):
                continue
            draw = draws.get(atom.ident)
            if draw is not None and (task.task.repeated or _holders(task, atom.ident) > 1):
                loads, own = task.call.traits.prepared, sent is task.task
                report = _report(task, sent, path, *draw, by_worker=loads or not own)
                report.case = task.call.library if loads else atom.name
                report.fix = _one_each(task, path, atom) if own and not private else None
                yield report
                break
        else:
            yield from _captured(program, task, draws)


def _captured(
    program: Program, task: TaskRun, draws: dict[int, tuple[TaskRun, Effect[GeneratorDraw]]]
) -> Iterator[Report]:
    """The report of a captured generator, pickled with the function or copied by a fork."""
    call = task.call
    if not (task.task.repeated or len(call.tasks) > 1):
        return
    forked = call.start == "fork"
    pickled = captures(program, task)
    inherited = ((it.what, it.payload.value, it.site) for it in variables(task))
    for name, value, _ in inherited if forked else pickled:
        only = value.only
        draw = draws.get(only.ident) if isinstance(only, Thing) else None
        if not isinstance(only, Thing) or only.kind != "generator" or draw is None:
            continue
        if not call.channel.answers and _draws_between_forks(program, only):
            continue
        report = _report(task, task.task, name, *draw, by_worker=forked)
        report.case = only.name
        yield report
        return


def _report(
    task: TaskRun, sent: TaskCall, name: str, by: TaskRun, draw: Effect, *, by_worker: bool
) -> Report:
    """The report of a generator for all tasks or workers, from which `by` draws."""
    named = capitalised(code(as_written(sent, name)))
    got = "all workers draw" if by_worker else "every task gets"
    return Report(
        sent.site,
        f"{named} is one generator for all tasks: each worker draws from a copy of it, and "
        f"{got} the same numbers.",
        (sending_step(task, sent), Step(draw.site, f"`{by.name}` draws from it here")),
        call=task.call,
        when=draw.when,
    )


def _draws_between_forks(program: Program, generator: Thing) -> bool:
    """Whether the parent draws from it, possibly between forks."""
    return any(
        effect.worker is None and effect.payload.generator == generator.ident
        for effect in program.effects_of(GeneratorDraw)
    )


def _is_the_only_one(program: Program, task: TaskRun, path: str, generator: Thing) -> bool:
    """Whether the task-specific arguments of all tasks are this one generator."""
    site, call = generator.site, task.call.site
    if site is None or generator.part("once") is None:
        return False
    near = site.function is None or site.function == call.function
    near = site.module is call.module and near
    return (near or program.generators.get(site.node) == {generator.ident}) and all(
        atom == generator
        for place, atom, _ in task.given
        if place == path and isinstance(atom, Thing) and atom.kind in ("generator", "spawned")
    )


def _one_each(task: TaskRun, path: str, generator: Thing) -> Fix | None:
    """A generator for each task, derived from the shared one."""
    site = task.task.site
    node = argument(site, path)
    if node is None:
        return None
    module, text = site.module, source_of(site.module, node)
    name = generator.name
    changes: tuple[Change, ...] | None
    if name in ("numpy.random.default_rng", "numpy.random.Generator"):
        changes = (Wrap(module, node, after=".spawn(1)[0]"),)
    elif name == "torch.Generator":
        imported = importing(module, "torch")
        draw = f"torch.randint(2**63 - 1, (), generator={text})"
        source = f"torch.Generator().manual_seed({draw}.item())"
        changes = None if imported is None else (Replace(module, node, source), *imported)
    else:
        seed = {"random.Random": "getrandbits(64)", "numpy.random.RandomState": "randint(2**31)"}
        made = spelled(module, name)
        if made is None or name not in seed:
            return None
        changes = (Replace(module, node, f"{made}({text}.{seed[name]})"),)
    if changes is None:
        return None
    return Fix("unsafe", "give each task its own generator", changes)


def _holders(task: TaskRun, ident: int) -> int:
    """The number of tasks of the call with the generator."""
    return sum(
        any(isinstance(atom, Thing) and atom.ident == ident for _, atom, _ in other.given)
        for other in task.call.tasks
    )
