"""``Parallel(backend="dask")`` never works."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Change, Fix, RemoveKeyword, UnderWith
from gradguard_lint.fixes.recipes import importing, keyword, source_of
from gradguard_lint.rules.base import Examples, Report

CODE = "GG405"


def check(program: Program) -> Iterator[Report]:
    for effect in program.kinds("dask-backend"):
        yield Report(
            effect.site,
            '`Parallel(backend="dask")` always raises an error: joblib takes its dask backend from '
            "`parallel_config` only.",
            fix=_by_context(effect.site),
        )


def _by_context(site: Site) -> Fix | None:
    """``with parallel_config(backend="dask")`` around the statement."""
    node, statement, module = site.node, site.statement, site.module
    if not isinstance(node, ast.Call) or not isinstance(statement, ast.stmt):
        return None
    backend = keyword(node, "backend")
    if any(
        isinstance(later, (ast.Lambda, ast.GeneratorExp)) and node in ast.walk(later)
        for later in ast.walk(statement)
    ):
        return None  # it is called when the block has ended
    if backend is None or not isinstance(backend.value, ast.Constant):
        return None
    imported: tuple[Change, ...] | None = ()
    if isinstance(node.func, ast.Attribute):
        config = f"{ast.unparse(node.func.value)}.parallel_config"
    else:
        config = "parallel_config"
        imported = importing(module, "parallel_config", "joblib")
    if imported is None:
        return None
    source = f"{config}(backend={source_of(module, backend.value)})"
    changes = (
        RemoveKeyword(module, node, "backend"),
        UnderWith(module, statement, source),
        *imported,
    )
    return Fix("safe", "name the backend in `parallel_config`", changes)


BAD: Examples = {
    "by argument": """\
from joblib import Parallel, delayed

results = Parallel(n_jobs=2, backend="dask")(delayed(abs)(k) for k in range(3))  # GG405
""",
    "with a cluster": """\
from dask.distributed import Client
from joblib import Parallel, delayed

if __name__ == "__main__":
    with Client(n_workers=1, processes=False, dashboard_address=None):
        parallel = Parallel(n_jobs=2, backend="dask")  # GG405
        print(parallel(delayed(abs)(-k) for k in range(3)))  # repaired: [0, 1, 2]
""",
}

FIXED: Examples = {
    "by argument": """\
from joblib import Parallel, delayed, parallel_config

with parallel_config(backend="dask"):
    results = Parallel(n_jobs=2)(delayed(abs)(k) for k in range(3))  # GG405
""",
    "with a cluster": """\
from dask.distributed import Client
from joblib import Parallel, delayed, parallel_config

if __name__ == "__main__":
    with Client(n_workers=1, processes=False, dashboard_address=None):
        with parallel_config(backend="dask"):
            parallel = Parallel(n_jobs=2)  # GG405
        print(parallel(delayed(abs)(-k) for k in range(3)))  # repaired: [0, 1, 2]
""",
}

GOOD: Examples = {
    "by context": """\
from joblib import Parallel, delayed, parallel_config

with parallel_config(backend="dask"):
    results = Parallel(n_jobs=2)(delayed(abs)(k) for k in range(3))
""",
}
