"""A process worker initialises a GPU: every worker makes a context of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.conditions import NONE, consistent
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step, TaskRun, Waited
from gradguard_lint.domain.starts import THREAD
from gradguard_lint.domain.unknowns import is_own
from gradguard_lint.domain.values import Atom, Const, Site, Thing
from gradguard_lint.engine.truth import names_gpu
from gradguard_lint.fixes.changes import Fix, Replace, Wrap
from gradguard_lint.fixes.later import asked
from gradguard_lint.fixes.recipes import made_by
from gradguard_lint.fixes.task_functions import function_of, handed_out_alone
from gradguard_lint.fixes.written import evaluable, keyword, source_of
from gradguard_lint.rules.base import MOST, Examples, Report, chain, code, handed_out, started_cuda
from gradguard_lint.rules.exclusive import excludes

CODE = "GG201"

_CHOOSING = ("set-visible", "gpu-init", "gpu-hint", "gpu-chosen")
"""What may say which GPU a process uses."""


_USING = ("gpu-init", "gpu-used", "gpu-hint", "gpu-implied")
"""What a process does with a GPU."""


def check(program: Program) -> Iterator[Report]:
    chosen = _chosen(program)
    used = [
        (task, _first(task))
        for task in program.process_tasks()
        # One process for each GPU is how GPUs are meant to be used.
        if not task.call.meant and not _has_a_gpu_of_its_own(task, chosen)
    ]
    used = [(task, first) for task, first in used if first]
    lone = _lone(program, [task for task, _ in used])
    return _reports(program, [it for it in used if not _is_apart(program, it[0])], lone=lone)


def _reports(
    program: Program, used: list[tuple[TaskRun, list[Effect]]], *, lone: list[ParallelCall]
) -> Iterator[Report]:
    """What is said of tasks, each with what it uses a GPU by: the first on each of its ways."""
    reached: dict[ast.AST, list[tuple[TaskRun, Effect]]] = {}
    branches: dict[ast.AST, dict[Site, Effect]] = {}
    instead: dict[ast.AST, list[tuple[TaskRun, list[Effect]]]] = {}
    for task, (first, *rest) in used:
        reached.setdefault(first.site.node, []).append((task, first))
        branches.setdefault(first.site.node, {}).update((it.site, it) for it in rest)
        if rest:
            instead.setdefault(first.site.node, []).append((task, rest))
    meant = any(effect.kind == "gpu-meant" for effect in program.effects)
    for node, ways in reached.items():
        task, effect = min(ways, key=lambda way: (_fails(*way), len(way[1].chain)))
        others = {
            other.task.site: other
            for other, _ in ways
            if other.task.site.node is not task.task.site.node
        }
        unasked = effect.kind == "gpu-implied" and not meant
        alone = all(way.call in lone for way, _ in ways) and not _fails(task, effect)
        beside = alone and _used_in_parent(program)
        what = effect.what.strip("`")
        workers = task.call.workers
        does = "initialises the GPU here"
        if effect.kind == "gpu-implied":
            takes = "each worker process takes its own share of it"
            if alone and not beside:
                takes = "no other process of this program uses it meanwhile"
            message = (
                f"`{what}` makes TensorFlow take the GPU's memory inside {workers}, wherever "
                f"there is a GPU: {takes}."
            )
        elif _fails(task, effect):
            message = (
                f"`{what}` would initialise the GPU inside {workers}, and raises an error there, "
                "as the parent starts CUDA before the fork (GG203). In fresh processes, each "
                "worker makes a context of its own on it."
            )
            does = "fails here"
        elif alone and not beside:
            there = "there is one context at a time" if len(lone) > 1 else "one context is made"
            message = (
                f"`{what}` initialises the GPU inside {workers}: no other process of this program "
                f"uses it meanwhile, and {there}."
            )
        else:
            message = (
                f"`{what}` initialises the GPU inside {workers}: "
                f"{_contexts(program, [way for way, _ in ways])}."
            )
        yield Report(
            effect.site,
            message,
            (
                *chain(effect),
                Step(effect.site, f"`{what}` {does}"),
                *_first_data(task, effect),
                *_on_other_branches([*branches[node].values()]),
                *(handed_out(other) for other in others.values()),
            ),
            severity="info" if alone or unasked or all(it.grown for _, it in ways) else None,
            call=task.call,
            when=effect.when,
            what=what,
            case=_case(program, task, effect),
            others=tuple(others),
            fix=_in_the_parent(program, task, effect) if not others else None,
            otherwise=(*_reports(program, instead.get(node, []), lone=lone),),
        )


def _lone(program: Program, tasks: list[TaskRun]) -> list[ParallelCall]:
    """What starts a process that alone uses the GPU as long as it lives, or the only one that does
    so beside the parent: it is meant to, and makes one context more."""
    calls = list(dict.fromkeys(task.call for task in tasks))
    if tasks and _is_one_process(tasks):
        return calls
    return [] if _used_in_parent(program) else [it for it in calls if _is_alone(it, calls)]


def _is_alone(call: ParallelCall, calls: list[ParallelCall]) -> bool:
    """Whether the process of `call` has ended before the workers of any other of `calls` are there,
    and those of earlier ones have before it starts."""
    if not call.single or not call.awaited or any(it in calls for it in call.overlaps):
        return False
    return all(
        other.worker is None
        and (other.awaited if other.single else other not in call.before or _ended(other, call))
        for other in calls
    )


def _ended(other: ParallelCall, call: ParallelCall) -> bool:
    """Whether the workers of `other` have certainly ended where `call` starts its own."""
    waits = (call.before.get(Waited(ident)) for ident in other.until)
    return any(when is not None and when <= call.when for when in waits)


def _is_one_process(tasks: list[TaskRun]) -> bool:
    """Whether all of `tasks` are what one process does, which is started for nothing else."""
    call = tasks[0].call
    return call.single and not call.many and all(task.call is call for task in tasks)


def _used_in_parent(program: Program) -> bool:
    return any(
        it.kind in _USING and (it.worker is None or it.worker.call.kind == THREAD)
        for it in program.effects
    )


def _contexts(program: Program, tasks: list[TaskRun]) -> str:
    """Which contexts are made where `tasks` initialise the GPU."""
    if not _is_one_process(tasks):
        return "each worker process makes a context of its own on it"
    whose = "the parent's" if _used_in_parent(program) else "those of other processes"
    return f"this process makes a context of its own on it, beside {whose}"


def _case(program: Program, task: TaskRun, effect: Effect) -> str:
    """Which advice fits: workers that train, or have a model on the GPU, or that each are a process
    of the program's own, are not asked to leave the GPU to another process."""
    own = [it for it in task.effects if it.kind == "gpu-init"]
    if _called(effect) == "torch.load" and all(it.site == effect.site for it in own):
        return "weights"
    if task.call.library == "ray":
        return task.call.library
    if task.call.single or any(it.kind in ("backward", "step") for it in task.effects):
        return "whole program"
    models = set[ast.AST]().union(*program.moved.values())
    return "whole program" if any(it.site.node in models for it in own) else ""


def _called(effect: Effect) -> str:
    return effect.what.strip("`").partition("(")[0]


def _first_data(task: TaskRun, effect: Effect) -> Iterator[Step]:
    """What first allocates on the GPU, where the context is initialised by a question."""
    if not effect.asks:
        return
    for other in task.effects:
        if other.kind == "gpu-init" and not other.asks and consistent(other.when, effect.when):
            yield Step(other.site, f"{code(other.what)} is the first to put something on it")
            return


def _on_other_branches(instead: list[Effect]) -> Iterator[Step]:
    """The uses of a GPU that a task may come to instead of the first."""
    for number, effect in enumerate(instead[:MOST], 1):
        more = len(instead) - MOST if number == MOST else 0
        also = f", and so do {more} more" if more > 0 else ""
        yield Step(effect.site, f"on another branch, {code(effect.what)} does{also}")


def _fails(task: TaskRun, effect: Effect) -> bool:
    """Whether CUDA certainly cannot be initialised there."""
    return effect.kind == "gpu-init" and any(
        task.meets(effect, first) for first in started_cuda(task.call)
    )


def _has_a_gpu_of_its_own(task: TaskRun, chosen: dict[ast.AST, set[Atom]]) -> bool:
    """Whether the task joins a group of processes, chooses a GPU for its process, or is given
    one."""
    if task.call.single and any(private and _names_gpu(atom) for _, atom, private in task.given):
        return True
    return any(
        effect.kind == "process-group"
        or (effect.kind in _CHOOSING and is_own(effect.value) and not effect.value.constants())
        for effect in task.effects
    ) or any(_differs(chosen[effect.site.node]) for effect in _choosing(task))


def _chosen(program: Program) -> dict[ast.AST, set[Atom]]:
    """Which GPUs each place chooses that processes reach which are started one by one."""
    chosen: dict[ast.AST, set[Atom]] = {}
    for task in program.process_tasks():
        for effect in _choosing(task):
            chosen.setdefault(effect.site.node, set()).update(effect.value.atoms)
    return chosen


def _choosing(task: TaskRun) -> Iterator[Effect]:
    """What chooses a GPU for all that the process of `task` does: in it, or before it starts."""
    for effect in task.effects if task.call.single else task.effects[: task.initialised]:
        if effect.kind in _CHOOSING:
            yield effect
    for event in task.call.before if task.call.single else ():
        if isinstance(event, Effect) and event.kind == "set-visible" and event.worker is None:
            yield event


def _differs(devices: set[Atom]) -> bool:
    """Whether one process may use another GPU than the next."""
    named = {atom.value for atom in devices if isinstance(atom, Const)}
    return len(named) < len(devices) or len(named - {"cpu"}) > 1


def _is_apart(program: Program, task: TaskRun) -> bool:
    """Whether no other process of the program uses the GPU that the one of `task` is told by its
    number, and some use others."""
    if not task.call.single or task.call.many:
        return False
    own = _numbers(_certain(task))
    here = [it for it in program.effects if it.worker is None]
    others = [
        _numbers(effects)
        for effects, when in (
            (here, NONE),
            *((_certain(it), it.call.when) for it in program.process_tasks() if it is not task),
        )
        if consistent(when, task.call.when)
    ]
    return bool(own) and any(others) and all(map(own.isdisjoint, others))


def _certain(task: TaskRun) -> list[Effect]:
    """What `task` does wherever it comes to its first use of a GPU."""
    first = _first(task)
    return [it for it in task.effects if any(it.when <= one.when for one in first)]


def _numbers(effects: list[Effect]) -> set[str]:
    """The numbers of the GPUs that one process uses with these `effects`, as far as that is known:
    that of the first, where it names none."""
    told: dict[bool, set[str]] = {True: set(), False: set()}
    for effect in effects:
        if effect.kind in _USING or effect.kind in _CHOOSING:
            names = effect.value.constants() or ([] if effect.kind in _CHOOSING else [None])
            told[effect.kind == "set-visible"].update(map(str, names))
    visible = {number for names in told[True] for number in names.split(",")}
    named = {name.rpartition(":")[2] for name in told[False] if name[-1:].isdigit()}
    return visible or named or ({"0"} if told[False] else set())


def _names_gpu(atom: Atom) -> bool:
    if isinstance(atom, Thing):
        return atom.kind == "device" and atom.gpu and not atom.name[-1:].isdigit()
    return isinstance(atom, Const) and isinstance(atom.value, str) and names_gpu(atom.value)


def _in_the_parent(program: Program, task: TaskRun, effect: Effect) -> Fix | None:
    """The move of the value that the worker returns, made in the parent instead."""
    function, moved, call = function_of(task), effect.site.node, task.call.site
    if function is None or not isinstance(moved, ast.Call) or not isinstance(call.node, ast.Call):
        return None
    around = _AROUND_RESULTS.get((task.call.library, getattr(call.node.func, "attr", "")))
    around = ("[", "]") if task.call.library == "joblib" else around
    later = asked(task.call.site) if around is None and task.call.each else []
    if (around is None and not later) or not isinstance(moved.func, ast.Attribute):
        return None
    made = made_by(task.call)
    if made is None or keyword(made, "return_as") is not None:
        return None
    if not handed_out_alone(program, function, lambda other: other.site == task.call.site):
        return None
    given = [*moved.args, *(item.value for item in moved.keywords)]
    if moved.func.attr not in ("cuda", "to") or not all(
        evaluable(call.module, item) for item in given
    ):
        return None
    returned = [site.node for _, site in task.returns]
    if not returned or any(getattr(node, "value", None) is not moved for node in returned):
        return None
    arguments = source_of(effect.site.module, moved)[
        len(source_of(effect.site.module, moved.func)) :
    ]
    first, last = around or ("", "")
    move = f".{moved.func.attr}{arguments}"
    changes = (
        Replace(effect.site.module, moved, source_of(effect.site.module, moved.func.value)),
        *(
            Wrap(
                call.module,
                result,
                f"{first}result{move} for result in " if first else "",
                last or move,
            )
            for result in later or [call.node]
        ),
    )
    return Fix("unsafe", "move the results in the parent", changes, alone=(function.name,))


_AROUND_RESULTS = {
    ("multiprocessing", "map"): ("[", "]"),
    ("multiprocessing", "starmap"): ("[", "]"),
    ("multiprocessing", "imap"): ("(", ")"),
    ("multiprocessing", "imap_unordered"): ("(", ")"),
    ("multiprocessing", "apply"): ("", ""),
    ("concurrent.futures", "map"): ("(", ")"),
}
"""What stands around all results that a method gives, as a list or one after the other; nothing
where it gives one."""


def _first(task: TaskRun) -> list[Effect]:
    """The first use of a GPU on each way through the task; what another library is told counts
    where nothing is plainer."""
    for kind in ("gpu-init", "gpu-hint", "gpu-implied"):
        found: list[Effect] = []
        for effect in task.effects:
            if effect.kind != kind or effect.bare:
                continue
            if all(excludes(it, effect) for it in found):
                found.append(effect)
        if found:
            return found
    return []


BAD: Examples = {
    "in the worker": """\
import torch
from joblib import Parallel, delayed


def train(seed):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = torch.ones(8, 3).to(device)  # GG201
    return batch.sum().item() + seed


scores = Parallel(n_jobs=4)(delayed(train)(seed) for seed in range(8))
""",
    "one call below, device from the constructor": """\
import torch
from joblib import Parallel, delayed


class Trainer:
    def __init__(self, device="cuda:0"):
        self.device = device

    def build(self):
        return torch.nn.Linear(3, 1).to(self.device)  # GG201

    def fit(self, seed):
        net = self.build()
        return seed, sum(p.numel() for p in net.parameters())

    def run(self):
        return Parallel(n_jobs=-1)(delayed(self.fit)(seed) for seed in range(3))
""",
    "moved as it is returned": """\
import torch
from joblib import Parallel, delayed


def load(k):
    return (torch.ones(3) * k).to("cuda")  # GG201


batches = Parallel(n_jobs=2)(delayed(load)(k) for k in range(2))
print([batch.is_cuda for batch in batches])  # repaired: [True, True]
""",
    "cupy in a pool": """\
import cupy as cp
from multiprocessing import get_context


def norm(k):
    return float(cp.linalg.norm(cp.arange(k)))  # GG201


with get_context("spawn").Pool(2) as pool:
    print(pool.map(norm, [10, 20]))
""",
}

FIXED: Examples = {
    "moved as it is returned": """\
import torch
from joblib import Parallel, delayed


def load(k):
    return torch.ones(3) * k  # GG201


batches = [result.to("cuda") for result in Parallel(n_jobs=2)(delayed(load)(k) for k in range(2))]
print([batch.is_cuda for batch in batches])  # repaired: [True, True]
""",
}

GOOD: Examples = {
    "only where there is no GPU": """\
import torch
from joblib import Parallel, delayed

device = "cuda" if torch.cuda.is_available() else "cpu"


def work(k):
    return (torch.ones(3, device=device) * k).sum().item()


if device == "cpu":
    results = Parallel(n_jobs=4)(delayed(work)(k) for k in range(4))
else:
    results = [work(k) for k in range(4)]
""",
    "threads, and one job": """\
import torch
from joblib import Parallel, delayed


def work(k):
    return (torch.ones(3).cuda() * k).sum().item()


threads = Parallel(n_jobs=4, require="sharedmem")(delayed(work)(k) for k in range(4))
serial = Parallel(n_jobs=1)(delayed(work)(k) for k in range(4))
""",
}
