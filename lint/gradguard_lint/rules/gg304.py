"""Workers draw from a global generator in the same state: all of them draw the same numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step, TaskRun
from gradguard_lint.domain.starts import PROCESS
from gradguard_lint.domain.values import Function, Site
from gradguard_lint.rules.base import Report, chain, code, listed, place, sites_to
from gradguard_lint.rules.initial_draws import is_replaced
from gradguard_lint.rules.seeds import FRESH, imports_of, repeats, seeds_on_import

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.effects import Kind

CODE = "GG304"

Why = tuple[str, tuple[Step, ...]]
"""Why a generator is in the same state in all workers, and where that is done."""

_TITLES = {"numpy": "NumPy", "random": "Python", "tensorflow": "TensorFlow"}
"""Whose a generator is, where its framework's name is written in another way."""


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.kind != PROCESS or not call.many:
            continue
        for task in call.tasks if call.start in ("fork", *FRESH) else ():
            drawn = list(_drawn(program, task))
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
                case=f"only {effect.framework}" if seeded and not others else "",
            )


def _seeded_otherwise(task: TaskRun, draw: Effect) -> Iterator[Effect]:
    """The seeds of a task's own that come before a draw, and are for other generators than it draws
    from: one for each of these."""
    seen = {"", draw.framework}
    for effect in task.effects[: task.effects.index(draw)]:
        own = effect.kind == "seed" and effect.value.constant is None
        if own and effect.framework not in seen and not _on_gpu(draw):
            seen.add(effect.framework)
            yield effect


def _whose(draw: Effect) -> str:
    """Which global generator is drawn from."""
    return "the GPU's" if _on_gpu(draw) else _titled(draw)


def _titled(effect: Effect) -> str:
    return f"{_TITLES.get(effect.framework, effect.framework)}'s"


def _on_gpu(draw: Effect) -> bool:
    return any(tensor.gpu for tensor in draw.target.tensors())


def _draws(draw: Effect) -> str:
    return f"{code(draw.what)} draws from {_whose(draw)} global generator"


def _drawn(program: Program, task: TaskRun) -> Iterator[tuple[Effect, str, tuple[Step, ...]]]:
    """The first draw of the task from each generator that is in the same state in all workers;
    why it is, and where that is done."""
    seeded: set[str] = set()
    alike: set[str] = set()
    since: set[str] = set()
    """Those that are certainly seeded alike since anything unknown may have seeded them."""
    found: set[str] = set()
    for number, effect in enumerate(task.effects):
        if effect.kind == "seed":
            by_initializer = number < task.initialised
            same = by_initializer and effect.value.constant is not None and _arrives(task, effect)
            if task.call.prepared:  # by whoever has a seed of its own, unless all of them get this
                same = same and task.task.repeated and effect.when <= task.call.when
            if not same:
                seeded.add(effect.framework)
                since = since - {effect.framework} if effect.framework else set()
            else:
                alike.add(effect.framework)
                if effect.when <= task.call.when:
                    seeded.discard(effect.framework)
                    since.add(effect.framework)
        if effect.kind != "draw" or _whose(effect) in found:
            continue
        if effect.framework in seeded or ("" in seeded and effect.framework not in since):
            continue
        if _seeds(task, effect.site) or is_replaced(task, number):
            continue  # each task makes a seed of its own of it, or nothing is left of it
        told: Why | None
        if effect.framework in alike:
            told = f"the initializer seeds it alike in all {task.call.workers}", ()
        elif task.call.prepared:
            told = None
        elif task.call.start == "fork":
            told = _inherited(program, task, effect)
        else:
            told = _run_again(program, task, effect)
        if told is not None:
            found.add(_whose(effect))
            yield effect, *told


def _inherited(program: Program, task: TaskRun, draw: Effect) -> Why | None:
    """Why a generator is in the same state in all workers that are forked."""
    call = task.call
    if draw.framework == "random":
        return None  # Python seeds it anew in each process that is forked
    if not call.answers and _moves_on(program, call, draw):
        return None
    if not _may_be_there(program, call, draw.framework):
        return None  # each worker makes its own, seeded at random
    if _on_gpu(draw):
        # It is made in the worker, seeded at random unless the parent has asked for a seed.
        seeds = [it for it in call.earlier("seed") if it.framework == draw.framework]
        seed = next((it for it in reversed(seeds) if task.meets(draw, it)), None)
        if seed is None:
            return None
        does = f"{code(seed.what)} of the parent ({place(seed.site, draw.site)})"
        step = Step(seed.site, f"{code(seed.what)} seeds the GPU's generator in each worker, too")
        return f"{does} seeds it alike in all {call.workers}", (step,)
    once = ""
    if draw.framework == "numpy" and not _is_there(program, call, "numpy", "generator-loaded"):
        once = _ONCE_LOADED
    elif draw.framework == "tensorflow":
        used = _made_there(program, call)
        if used is not None:
            step = Step(used.site, f"{code(used.what)} creates that generator in the parent")
            return f"all {call.workers} start with a copy of its state", (step,)
        if call.root == 1 or _of_a_test(call):
            once = _ONCE_USED
    return f"all {call.workers} start with a copy of its state{once}", ()


def _made_there(program: Program, call: ParallelCall) -> Effect | None:
    """What makes TensorFlow's global generator in the parent before the workers are forked."""
    made = _before(program, call, _brought(program, call), "compute", "generator-loaded", "seed")
    return next((effect for effect in made if effect.framework == "tensorflow"), None)


def _of_a_test(call: ParallelCall) -> bool:
    """Whether the program comes to `call` by a test: whatever runs that computes nothing before."""
    return any(
        name.lower().startswith("test") or name.endswith(_TESTS)
        for site in sites_to(call)
        for name in (site.function or "").split(".")
    )


_TESTS = ("Test", "Tests", "TestCase")
"""How the names of classes end whose methods are tests."""


def _may_be_there(program: Program, call: ParallelCall, framework: str) -> bool:
    """Whether the parent may have loaded that framework before the workers are forked, and so has
    its global generator."""
    if framework not in ("numpy", "torch") or call.root != 1:
        return True
    brought = _brought(program, call)
    if not brought <= program.imports.keys():
        return True  # nobody has looked at what one of them imports
    return any(
        effect.framework == framework
        for effect in _before(program, call, brought, "may-load", "generator-loaded")
    )


def _is_there(program: Program, call: ParallelCall, framework: str, *kinds: Kind) -> bool:
    """Whether the parent has done one of these things with that framework before the workers are
    forked, which make its global generator."""
    return any(
        effect.framework == framework
        for effect in _before(program, call, _brought(program, call), *kinds)
    )


def _before(
    program: Program, call: ParallelCall, brought: set[str], *kinds: Kind
) -> Iterator[Effect]:
    """What the parent did before the workers are forked, and on the import of what it imports."""
    yield from call.earlier(*kinds)
    for effect in program.kinds(*kinds):
        if effect.on_import in brought:
            yield effect


def _brought(program: Program, call: ParallelCall) -> set[str]:
    """The modules of the project that the parent has imported before the workers are forked."""
    parts = program.entry.split(".")
    around = {".".join(parts[:count]) for count in range(1, len(parts))}
    asked = {effect.home for effect in call.earlier("imports")} | around
    return imports_of(program, asked | program.imports.get(program.entry, set())) - {program.entry}


def _run_again(program: Program, task: TaskRun, draw: Effect) -> Why | None:
    """Why it is in the same state in all workers that are fresh processes."""
    seed = _seed_on_import(program, task, draw)
    if seed is None:
        return None
    does = f"{code(seed.what)} ({place(seed.site, draw.site)})"
    step = Step(seed.site, f"{code(seed.what)} runs again in each worker that imports this file")
    return f"all {task.call.workers} run {does} again as they import its file", (step,)


def _arrives(task: TaskRun, seed: Effect) -> bool:
    """Whether the initializer seeds the worker's own generator: `random.seed` is a method of the
    parent's, which is pickled with a copy of it."""
    if task.call.start == "fork" or seed.framework != "random":
        return True
    own = task.initializer.function.atoms if task.initializer is not None else ()
    return any(isinstance(atom, Function) for atom in own)


_ONCE_USED = " if the parent has used TensorFlow, or seeded it, by then"

_ONCE_LOADED = (
    " wherever the parent has loaded `numpy.random` (NumPy 2 does at its first use, and so do "
    "pandas and scikit-learn)"
)


def _seed_on_import(program: Program, task: TaskRun, draw: Effect) -> Effect | None:
    """The seed, the same each time, that the workers run again before that draw."""
    if draw.framework == "random" and task.call.start == "forkserver":
        return None  # where the fork server imports the program, its children seed it anew
    seeds = seeds_on_import(program, task, draw)
    if not all(repeats(seed.value) for seed in seeds):
        return None
    return next((seed for seed in reversed(seeds) if task.meets(draw, seed)), None)


def _seeds(task: TaskRun, draw: Site) -> bool:
    """Whether what is drawn goes, with something else, to a call of the task that seeds."""
    for effect in task.effects:
        seed = effect.site.node
        if effect.kind != "seed" or effect.site.module is not draw.module:
            continue
        if not isinstance(seed, ast.Call) or all(part is not draw.node for part in ast.walk(seed)):
            continue
        drawn = set(ast.walk(draw.node))
        given = [part for item in seed.args for part in ast.walk(item) if part not in drawn]
        called = {part.func for part in given if isinstance(part, ast.Call)}
        return any(isinstance(part, ast.Name) and part not in called for part in given)
    return False


_LOOPS = (ast.For, ast.While, ast.AsyncFor, ast.ListComp, ast.SetComp, ast.GeneratorExp)


def _moves_on(program: Program, call: ParallelCall, draw: Effect) -> bool:
    """Whether the parent draws or seeds between the forks of its processes, in their loop."""
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
        and effect.kind in ("draw", "seed")
        and effect.framework == draw.framework
        and any(map(in_loop, sites_to(effect)))
        for effect in program.effects
    ) or any(
        isinstance(node, ast.Call) and "seed" in ast.unparse(node.func).lower()
        for loop in around
        for node in ast.walk(loop)
    )
