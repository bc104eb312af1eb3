"""scikit-learn runs an estimator on a GPU in several jobs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Fix, SetKeyword
from gradguard_lint.fixes.written import keyword
from gradguard_lint.rules.base import Report

CODE = "GG205"


def check(program: Program) -> Iterator[Report]:
    searches = program.library_uses("fit in several jobs", "fit in one job")
    for index, effect in enumerate(searches):
        if _in_one_job(effect) or any(_serial(it, effect) for it in searches[index:]):
            continue
        made = effect.payload.place
        trace = () if made is None else (Step(made, "the estimator is given the GPU here"),)
        yield Report(
            effect.site,
            f"`{effect.what}` runs several jobs at once, and each trains its estimator on the "
            "same GPU.",
            trace,
            fix=_one_job(effect.site),
        )


def _in_one_job(search: Effect[LibraryUse]) -> bool:
    return search.payload.use == "fit in one job"


def _serial(later: Effect[LibraryUse], search: Effect[LibraryUse]) -> bool:
    """Whether `later` sets the `search` to one job before it begins."""
    same = later.payload.ident == search.payload.ident
    return _in_one_job(later) and same and later.when <= search.when


def _one_job(site: Site) -> Fix | None:
    if not isinstance(site.node, ast.Call) or keyword(site.node, "n_jobs") is None:
        return None
    change = SetKeyword(site.module, site.node, "n_jobs", "1")
    return Fix("unsafe", "run one job at a time", (change,))
