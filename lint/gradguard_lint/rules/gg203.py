"""CUDA is used in a forked worker although the parent has initialized it."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.conditions import (
    NONE,
    WITH_A_GPU,
    AnyOf,
    Conditions,
    consistent,
)
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step
from gradguard_lint.domain.values import Choice, Tensor
from gradguard_lint.fixes.spawning import advice_case, without_fork
from gradguard_lint.rules.base import (
    Report,
    before_fork,
    code,
    dispatch_step,
    returns_to_gpu,
    started_cuda,
    steps_to,
)

CODE = "GG203"


_INITIALISE = ("context", "named")
_AGAIN = (
    "initialised CUDA before the fork",
    "CUDA cannot be initialised again in a forked process",
)
_BEFORE_FORK = {
    **dict.fromkeys(_INITIALISE, _AGAIN),
    "driver": (
        "called `{what}` before the fork, which starts the CUDA driver",
        "CUDA cannot be initialised in a forked process then",
    ),
    "": (  # autograd
        "took gradients before the fork, which starts the CUDA driver where there is a GPU",
        "CUDA cannot be initialised in a forked process then",
    ),
}
"""What the parent did, and why forked workers fail, by kind of effect."""


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.start != "fork":
            continue
        found = _use_by_task(call) or _use_by_unpickling(call)
        if found is None:
            continue
        first, uses, used, when = found
        did, why = _BEFORE_FORK[first.gpu_use]
        asked = {*call.before.get(first, NONE), *call.when, *when}
        off = _needs_switch(program, frozenset(asked))
        does = "initialises CUDA" if first.gpu_use in _INITIALISE else "starts the CUDA driver"
        before = f"{code(first.what)} {does} in the parent"
        default = _off_by_default(program, call)
        yield Report(
            call.site,
            f"{uses} in {call.workers}, but the parent {did.format(what=first.what)}: {why}."
            f"{default}",
            (*before_fork(call, first, before), *used),
            severity="warning" if default or off else None,
            call=call,
            when=when,
            case=advice_case(call),
            fix=without_fork(call),
        )


def _off_by_default(program: Program, call: ParallelCall) -> str:
    """A sentence for workers that start only if an option or argument isn't the default."""
    for key, truth in call.chosen:
        if truth or not isinstance(key, tuple) or key[0] != "eq":
            continue
        about, value = key[1:]
        if program.defaults.get(about) == (value,):
            return f" By default, `{about[-1]}` is {value}: nothing is forked."
    return ""


def _needs_switch(program: Program, when: Conditions) -> bool:
    """Whether `when` needs an option that is off by default."""
    return any(
        truth
        and (
            all(_needs_switch(program, world) for world in key)
            if isinstance(key, AnyOf)
            else program.defaults.get(key) == (False,)
        )
        for key, truth in when
    )


Found = tuple[Effect, str, tuple[Step, ...], Conditions]
"""The parent's effect, the later use of CUDA for the message, its steps and conditions."""


def _use_by_task(call: ParallelCall) -> Found | None:
    """The first use of CUDA by a task."""
    for first in started_cuda(call):
        for task in call.tasks:
            for used in task.effects:
                if _uses(call, used) and task.same_path(used, first):
                    uses = steps_to(used, f"{code(used.what)} uses CUDA in the worker")
                    return first, f"`{task.function_of(used)}` uses CUDA", uses, used.when
    return None


def _use_by_unpickling(call: ParallelCall) -> Found | None:
    """An argument on a GPU, unpickled before the task begins."""
    for first in started_cuda(call, named=True):
        for task in call.tasks:
            crossing = {atom: path for path, atom, _ in task.contents if returns_to_gpu(atom)}
            for value in (*task.task.args, *(value for _, value in task.task.keywords)):
                paths = [crossing.get(it.atom) for it in value.choices if _holds(call, it)]
                if paths and paths[0] is not None and None not in paths:
                    return (
                        first,
                        f"`{paths[0]}`, which is on the GPU, is unpickled",
                        (dispatch_step(task),),
                        NONE,
                    )
    return None


def _holds(call: ParallelCall, choice: Choice) -> bool:
    """Whether `call` may have this alternative on a machine with a GPU."""
    atom = choice.atom
    when = choice.when | atom.cpu if isinstance(atom, Tensor) and not atom.gpu else choice.when
    return consistent(when, call.when | WITH_A_GPU)


def _uses(call: ParallelCall, effect: Effect) -> bool:
    """Whether `effect` initializes CUDA, or certainly uses an object on the GPU."""
    if effect.gpu_use == "work":
        return effect.when <= call.when | WITH_A_GPU
    return effect.gpu_use == "context"
