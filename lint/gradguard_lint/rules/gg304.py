"""Workers draw the same numbers, from global generators in the same state."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Compute, Draw, Loaded, Payload, Seed
from gradguard_lint.domain.starts import PROCESS
from gradguard_lint.domain.values import Function, Site
from gradguard_lint.rules.base import Report, chain, code, listed, place, sites_to
from gradguard_lint.rules.initial_draws import is_replaced
from gradguard_lint.rules.seeds import FRESH, imports_of, repeats, seeds_on_import

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import TypeVar

    P = TypeVar("P", bound=Payload)

CODE = "GG304"

Why = tuple[str, tuple[Step, ...]]
"""The reason for equal states in all workers, and its steps."""

_TITLES = {"numpy": "NumPy", "random": "Python", "tensorflow": "TensorFlow"}
"""Names of frameworks in messages, if they differ from the module's."""


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.kind != PROCESS or not call.many:
            continue
        for task in call.tasks if call.start in ("fork", *FRESH) else ():
            drawn = list(_draws_in_same_state(program, task))
            if not drawn:
                continue
            (effect, state, steps), *others = drawn
            seeded = list(_seeded_otherwise(task, effect))
            more = [
                f"{_whose(other)} ({code(other.what)}, {place(other.site, effect.site)})"
                for other, *_ in others
            ]
            too = f" So it is with {listed(more)}." if more else ""
            if seeded:
                names = [f"{_titled(it)} ({place(it.site, effect.site)})" for it in seeded]
                too += f" The worker seeds {listed(names)}, but not {_whose(effect)}."
            yield Report(
                effect.site,
                f"{_draws(effect)}, and {state}: they draw the same numbers.{too}",
                (
                    *chain(effect),
                    *steps,
                    *(
                        step
                        for other, _, seeded in others
                        for step in (Step(other.site, _draws(other)), *seeded)
                    ),
                ),
                severity="info" if all(it.endswith(_ONCE_USED) for _, it, _ in drawn) else None,
                call=call,
                when=effect.when,
                case=f"only {effect.payload.framework}" if seeded and not others else "",
            )


def _seeded_otherwise(task: TaskRun, draw: Effect[Draw]) -> Iterator[Effect[Seed]]:
    """The first task-specific seed of each other generator before `draw`."""
    seen = {"", draw.payload.framework}
    for effect in of_kinds(task.effects[: task.effects.index(draw)], Seed):
        framework = effect.payload.framework
        own = effect.payload.value.constant is None
        if own and framework not in seen and not _on_gpu(draw):
            seen.add(framework)
            yield effect


def _whose(draw: Effect[Draw]) -> str:
    """The owner of the global generator of a draw."""
    return "the GPU's" if _on_gpu(draw) else _titled(draw)


def _titled(effect: Effect[Draw | Seed]) -> str:
    framework = effect.payload.framework
    return f"{_TITLES.get(framework, framework)}'s"


def _on_gpu(draw: Effect) -> bool:
    return any(tensor.gpu for tensor in draw.target.tensors())


def _draws(draw: Effect[Draw]) -> str:
    return f"{code(draw.what)} draws from {_whose(draw)} global generator"


def _draws_in_same_state(
    program: Program, task: TaskRun
) -> Iterator[tuple[Effect[Draw], str, tuple[Step, ...]]]:
    """The first draw from each generator with equal states in all workers, and the reason."""
    seeded: set[str] = set()
    alike: set[str] = set()
    since: set[str] = set()
    """Generators known to be seeded identically since the last unknown seed."""
    found: set[str] = set()
    for number, effect in enumerate(task.effects):
        done = effect.payload
        if isinstance(done, Seed):
            by_initializer = number < task.initialised
            same = by_initializer and done.value.constant is not None
            same = same and _seeds_the_worker(task, done.framework)
            if task.call.traits.prepared:  # the library seeds each worker; this seed may be for all
                same = same and task.task.repeated and effect.when <= task.call.when
            if not same:
                seeded.add(done.framework)
                since = since - {done.framework} if done.framework else set()
            else:
                alike.add(done.framework)
                if effect.when <= task.call.when:
                    seeded.discard(done.framework)
                    since.add(done.framework)
        draw = next(of_kinds([effect], Draw), None)
        if draw is None or _whose(draw) in found:
            continue
        framework = draw.payload.framework
        if framework in seeded or ("" in seeded and framework not in since):
            continue
        if _is_part_of_seed(task, draw.site) or is_replaced(task, number):
            continue  # part of the task's own seed, or overwritten
        why: Why | None
        if framework in alike:
            why = f"the initializer seeds it alike in all {task.call.workers}", ()
        elif task.call.traits.prepared:
            why = None
        elif task.call.start == "fork":
            why = _inherited(program, task, draw)
        else:
            why = _seeded_on_import(program, task, draw)
        if why is not None:
            found.add(_whose(draw))
            yield draw, *why


def _inherited(program: Program, task: TaskRun, draw: Effect[Draw]) -> Why | None:
    """The reason for equal states in all forked workers."""
    call, framework = task.call, draw.payload.framework
    if framework == "random":
        return None  # Python reseeds it in each forked process
    if not call.channel.answers and _draws_between_forks(program, call, draw):
        return None
    if not _may_be_loaded(program, call, framework):
        return None  # each worker creates its own, with a random seed
    if _on_gpu(draw):
        # The worker creates it, with the parent's seed if there is one.
        seeds = [it for it in call.earlier(Seed) if it.payload.framework == framework]
        seed = next((it for it in reversed(seeds) if task.same_path(draw, it)), None)
        if seed is None:
            return None
        does = f"{code(seed.what)} of the parent ({place(seed.site, draw.site)})"
        step = Step(seed.site, f"{code(seed.what)} seeds the GPU's generator in each worker, too")
        return f"{does} seeds it alike in all {call.workers}", (step,)
    once = ""
    if framework == "numpy" and not any(it.certain for it in _loaded(program, call, "numpy")):
        once = _ONCE_LOADED
    elif framework == "tensorflow":
        used = _created(program, call)
        if used is not None:
            step = Step(used.site, f"{code(used.what)} creates that generator in the parent")
            return f"all {call.workers} start with a copy of its state", (step,)
        if call.root == 1 or _is_in_test(call):
            once = _ONCE_USED
    return f"all {call.workers} start with a copy of its state{once}", ()


def _is_in_test(call: ParallelCall) -> bool:
    """Whether a test makes `call`; a test runner computes nothing before."""
    return any(
        name.lower().startswith("test") or name.endswith(_TESTS)
        for site in sites_to(call)
        for name in (site.function or "").split(".")
    )


_TESTS = ("Test", "Tests", "TestCase")
"""Suffixes of test class names."""


def _may_be_loaded(program: Program, call: ParallelCall, framework: str) -> bool:
    """Whether the parent may have loaded the global generator of `framework` before the fork."""
    if framework not in ("numpy", "torch") or call.root != 1:
        return True
    if not _imported_before(program, call) <= program.imports.keys():
        return True  # the imports of one of these modules are unknown
    return any(_loaded(program, call, framework))


def _loaded(program: Program, call: ParallelCall, framework: str) -> Iterator[Loaded]:
    """Imports of the parent before the fork that create the generator of `framework`, or may."""
    for effect in _before_fork(program, call, Loaded):
        if effect.payload.framework == framework:
            yield effect.payload


def _created(program: Program, call: ParallelCall) -> Effect | None:
    """The parent's effect before the fork that creates TensorFlow's global generator."""
    done = _before_fork(program, call, Compute, Loaded, Seed)
    return next((effect for effect in done if _creates_generator(effect.payload)), None)


def _creates_generator(done: Payload) -> bool:
    """Whether it certainly creates TensorFlow's global generator."""
    certain = isinstance(done, Seed) or (isinstance(done, Loaded) and done.certain)
    certain = certain or (isinstance(done, Compute) and not done.threads_only)
    return certain and getattr(done, "framework", "") == "tensorflow"


def _before_fork(program: Program, call: ParallelCall, *kinds: type[P]) -> Iterator[Effect[P]]:
    """The parent's effects before the fork, including those of its imports."""
    imported = _imported_before(program, call)
    yield from call.earlier(*kinds)
    for effect in program.effects_of(*kinds):
        if effect.on_import in imported:
            yield effect


def _imported_before(program: Program, call: ParallelCall) -> set[str]:
    """Project modules that the parent imports before the fork."""
    parts = program.entry.split(".")
    around = {".".join(parts[:count]) for count in range(1, len(parts))}
    asked = {it.payload.module for it in call.earlier(Loaded) if it.payload.module} | around
    return imports_of(program, asked | program.imports.get(program.entry, set())) - {program.entry}


def _seeded_on_import(program: Program, task: TaskRun, draw: Effect[Draw]) -> Why | None:
    """The reason for equal states in all fresh worker processes."""
    seed = _seed_on_import(program, task, draw)
    if seed is None:
        return None
    does = f"{code(seed.what)} ({place(seed.site, draw.site)})"
    step = Step(seed.site, f"{code(seed.what)} runs again in each worker that imports this file")
    return f"all {task.call.workers} run {does} again as they import its file", (step,)


def _seeds_the_worker(task: TaskRun, framework: str) -> bool:
    """Whether the initializer seeds the worker's generator.

    `random.seed` is a bound method, pickled with a copy of the parent's generator.
    """
    if task.call.start == "fork" or framework != "random":
        return True
    own = task.initializer.function.atoms if task.initializer is not None else ()
    return any(isinstance(atom, Function) for atom in own)


_ONCE_USED = " if the parent has used TensorFlow, or seeded it, by then"

_ONCE_LOADED = (
    " wherever the parent has loaded `numpy.random` (NumPy 2 does at its first use, and so do "
    "pandas and scikit-learn)"
)


def _seed_on_import(program: Program, task: TaskRun, draw: Effect[Draw]) -> Effect | None:
    """The constant seed that workers repeat on import before that draw."""
    if draw.payload.framework == "random" and task.call.start == "forkserver":
        return None  # Python reseeds it in each child of the fork server
    seeds = seeds_on_import(program, task, draw)
    if not all(repeats(seed.payload.value) for seed in seeds):
        return None
    return next((seed for seed in reversed(seeds) if task.same_path(draw, seed)), None)


def _is_part_of_seed(task: TaskRun, draw: Site) -> bool:
    """Whether the drawn value is combined with a task-specific value into the seed."""
    for effect in of_kinds(task.effects, Seed):
        seed = effect.site.node
        if effect.site.module is not draw.module:
            continue
        if not isinstance(seed, ast.Call) or all(part is not draw.node for part in ast.walk(seed)):
            continue
        drawn = set(ast.walk(draw.node))
        given = [part for item in seed.args for part in ast.walk(item) if part not in drawn]
        called = {part.func for part in given if isinstance(part, ast.Call)}
        return any(isinstance(part, ast.Name) and part not in called for part in given)
    return False


_LOOPS = (ast.For, ast.While, ast.AsyncFor, ast.ListComp, ast.SetComp, ast.GeneratorExp)


def _draws_between_forks(program: Program, call: ParallelCall, draw: Effect[Draw]) -> bool:
    """Whether the parent draws or seeds between forks in one loop."""
    around = [
        node
        for node in ast.walk(call.site.module.tree)
        if isinstance(node, _LOOPS) and call.site.stands_in(node)
    ]

    def in_loop(site: Site) -> bool:
        same = site.module is call.site.module
        return same and any(site.stands_in(node) for node in around)

    return any(
        effect.worker is None
        and isinstance(effect.payload, (Draw, Seed))
        and effect.payload.framework == draw.payload.framework
        and any(map(in_loop, sites_to(effect)))
        for effect in program.effects
    ) or any(
        isinstance(node, ast.Call) and "seed" in ast.unparse(node.func).lower()
        for loop in around
        for node in ast.walk(loop)
    )
