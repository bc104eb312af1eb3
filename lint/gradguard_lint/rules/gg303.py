"""A fork while the parent's threads run: workers wait for them forever, or fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from itertools import takewhile

from gradguard_lint.domain.effects import Effect, ParallelCall, Program, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Autograd, Compute, ComputeThreads, GpuUse
from gradguard_lint.fixes.changes import Fix, SetKeyword
from gradguard_lint.fixes.recipes import made_by
from gradguard_lint.fixes.spawning import advice_case, without_fork
from gradguard_lint.fixes.written import dotted, importing, keyword, spelled
from gradguard_lint.rules.base import Report, before_fork, steps_to

CODE = "GG303"

_STARTED_AT_ONCE = frozenset({"tensorflow", "jax"})
"""Frameworks that start threads with their first operation, however small."""


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork":
            continue
        found = _computes_after_fork(call)
        if found is None:
            yield from _autograd_after_fork(call)
            continue
        first, task, work = found
        framework = work.payload.framework
        does = (
            "computes" if not first.payload.threads_only else f"starts its threads ({first.what})"
        )
        yield Report(
            call.site,
            f"`{task.function_of(work)}` computes with {framework} in {call.workers}, after the "
            f"parent has started {framework}'s compute threads: a fork does not copy these, and "
            "the worker can wait for them forever.",
            (
                *before_fork(call, first, f"{framework} {does} in the parent here"),
                *steps_to(work, f"{framework} computes in the worker here"),
            ),
            call=call,
            when=work.when,
            case=advice_case(call),
            fix=without_fork(call) or _one_thread(call, framework),
        )


def _autograd_after_fork(call: ParallelCall) -> Iterator[Report]:
    """The report of gradients before and after the fork, in a program with a GPU."""
    for first in call.certain(Autograd):
        for task in call.tasks:
            work = next(filter(partial(_takes_gradients, task, first), task.effects), None)
            if work is None:
                continue
            yield Report(
                call.site,
                f"`{task.function_of(work)}` takes gradients in {call.workers}, after the "
                "parent has taken some, in a program that uses a GPU: autograd has threads of its "
                "own there, which a fork does not copy, and refuses to run in the worker.",
                (
                    *before_fork(call, first, "autograd runs in the parent here"),
                    *steps_to(work, "autograd runs in the worker here"),
                ),
                call=call,
                case=advice_case(call),
                fix=without_fork(call),
            )
            return


def _takes_gradients(task: TaskRun, first: Effect, work: Effect) -> bool:
    """Whether `work` runs autograd on the CPU after `first`, and the parent uses a GPU."""
    if not isinstance(work.payload, Autograd) or not task.same_path(work, first):
        return False
    if any(effect.gpu_use in ("context", "work") for effect in task.effects):
        return False  # this fails first (GG203)
    return any(
        gpu.gpu_use == "context" and task.same_path(work, gpu) for gpu in task.call.certain(GpuUse)
    )


def _one_thread(call: ParallelCall, framework: str) -> Fix | None:
    """An initializer that limits forked workers to one thread."""
    node = made_by(call)
    if framework != "torch" or node is None or call.traits.maker is None or len(node.args) > 1:
        return None
    module = call.traits.maker.module
    maker = dotted(module, node.func) or ast.unparse(node.func)
    if call.library == "joblib" or not maker.endswith(("Pool", "ProcessPoolExecutor")):
        return None
    called = spelled(module, "torch.set_num_threads")
    imported = () if called else importing(module, "torch")
    if imported is None or keyword(node, "initializer") is not None:
        return None
    changes = (
        SetKeyword(module, node, "initializer", called or "torch.set_num_threads"),
        SetKeyword(module, node, "initargs", "(1,)"),
        *imported,
    )
    return Fix("unsafe", "let each worker compute in one thread", changes)


def _computes_after_fork(
    call: ParallelCall,
) -> tuple[Effect[Compute], TaskRun, Effect[Compute]] | None:
    """The parent's computation before the fork, and a task that computes after it."""
    set_before = [effect.payload for effect in call.earlier(ComputeThreads)]
    limited = {it.framework for it in set_before if not it.several}
    if call.traits.prepared and not any(
        effect.payload.several
        for task in call.tasks
        for effect in of_kinds(task.effects, ComputeThreads)
    ):
        limited.add("torch")  # a loader's workers compute in one thread
    for first in sorted(call.certain(Compute), key=lambda it: it.payload.threads_only):
        framework = first.payload.framework
        small = not first.payload.threads_only and not first.payload.heavy
        if framework in limited or (small and framework not in _STARTED_AT_ONCE):
            continue
        if framework == "torch" and first.worker is not call.worker:
            continue  # each computing thread has its own compute threads
        done = _compiled(call) if framework == "jax" else frozenset()
        for task in call.tasks:
            for work in _large_computations(task, framework):
                if (work.payload.always or work.what not in done) and task.same_path(work, first):
                    return first, task, work
    return None


def _compiled(call: ParallelCall) -> frozenset[str]:
    """The parent's JAX computations, which a worker can repeat if they are small."""
    return frozenset(it.what for it in call.earlier(Compute) if it.payload.framework == "jax")


def _leaves_threads(effect: Effect) -> bool:
    return not isinstance(effect.payload, ComputeThreads) or effect.payload.several


def _large_computations(task: TaskRun, framework: str) -> Iterator[Effect[Compute]]:
    """The large computations of the task, before it limits its threads."""
    before = takewhile(_leaves_threads, task.effects)
    for effect in of_kinds(before, Compute):
        if effect.payload.heavy and effect.payload.framework == framework:
            yield effect
