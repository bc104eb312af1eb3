"""The parent seeds a global generator, and fresh worker processes draw from their own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from gradguard_lint.domain.effects import Effect, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Draw, Seed
from gradguard_lint.domain.starts import PROCESS
from gradguard_lint.rules.base import Report, code, dispatch_step
from gradguard_lint.rules.seeds import FRESH, may_import, seeds_on_import

CODE = "GG307"


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        if call.kind != PROCESS or call.start not in FRESH or call.traits.prepared:
            continue
        for seed in call.earlier(Seed):
            framework = seed.payload.framework
            if seed.worker is not None or not framework or seed.payload.value.is_none:
                continue
            for task in call.tasks:
                draw = _unseeded(task, framework)
                if draw is None or may_import(program, task, seed):
                    continue
                if task.same_path(draw, seed) and not seeds_on_import(program, task, draw):
                    yield Report(
                        seed.site,
                        f"{code(seed.what)} seeds the generator of this process only: "
                        f"`{task.function_of(draw)}` draws in {call.workers}, whose generators are "
                        "seeded at random.",
                        (
                            *seed.chain,
                            dispatch_step(task),
                            Step(draw.site, f"{code(draw.what)} draws in the worker here"),
                        ),
                        call=call,
                    )
                    break


def _unseeded(task: TaskRun, framework: str) -> Effect[Draw] | None:
    """The task's first draw from that generator, unless it seeds it earlier."""
    unseeded = takewhile(lambda it: not _seeds(it, framework), task.effects)
    drawn = (it for it in of_kinds(unseeded, Draw) if it.payload.framework == framework)
    return next(drawn, None)


def _seeds(effect: Effect, framework: str) -> bool:
    return isinstance(effect.payload, Seed) and effect.payload.framework in (framework, "")
