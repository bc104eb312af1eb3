"""Any valid Python: the linter ends in time, says the same again, and its repairs are Python.

The programs are those that the linter's rules have as examples, with statements moved, nested,
doubled and mixed (`mutated`), and those that hypothesmith makes from Python's grammar.
"""

from __future__ import annotations

import ast
import copy
import io
import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from program_pages import rule_programs

SECONDS = 30
"""Of CPU that one program may take; the longest of the examples takes less than one."""
MEMORY = 4 << 30
PREAMBLE = "import torch\nfrom joblib import Parallel, delayed\n"
CALL = "\nParallel(n_jobs=2)(delayed(lambda k: torch.ones(k, device='cuda'))(k) for k in [1])\n"
"""Without these nearly every drawn program ends at the byte search."""


def examples() -> list[str]:
    """The programs of the rules, reported and silent."""
    return [program.source for program in rule_programs() if len(program.files) == 1]


# -- mutations ----------------------------------------------------------------------------------


def mutated(drawn: random.Random, sources: list[str]) -> str:
    """A valid program made of one or two of `sources`."""
    while True:
        tree = ast.parse(drawn.choice(sources))
        other = ast.parse(drawn.choice(sources))
        for _ in range(drawn.randint(1, 12)):
            drawn.choice(CHANGES)(drawn, tree, other)
        try:
            source = ast.unparse(ast.fix_missing_locations(tree))
            compile(source, "drawn", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError):
            continue
        return f"{source}\n"


def _bodies(tree: ast.AST) -> list[list[ast.stmt]]:
    found = []
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                found.append(body)
    return found


def _shuffle(drawn: random.Random, tree: ast.Module, other: ast.Module) -> None:
    drawn.shuffle(drawn.choice(_bodies(tree)))


def _double(drawn: random.Random, tree: ast.Module, other: ast.Module) -> None:
    body = drawn.choice(_bodies(tree))
    body.insert(drawn.randint(0, len(body)), copy.deepcopy(drawn.choice(body)))


def _drop(drawn: random.Random, tree: ast.Module, other: ast.Module) -> None:
    body = drawn.choice(_bodies(tree))
    if len(body) > 1:
        del body[drawn.randrange(len(body))]


def _graft(drawn: random.Random, tree: ast.Module, other: ast.Module) -> None:
    theirs = drawn.choice(drawn.choice(_bodies(other)))
    body = drawn.choice(_bodies(tree))
    body.insert(drawn.randint(0, len(body)), copy.deepcopy(theirs))


_NESTS = (
    "if unknown:\n    pass",
    "if unknown:\n    pass\nelse:\n    torch = None",
    "for k in range(3):\n    pass",
    "while unknown():\n    pass",
    "while True:\n    pass",
    "try:\n    pass\nexcept Exception as e:\n    raise\nelse:\n    k = 1\nfinally:\n    x = 2",
    "with torch.no_grad() as mode:\n    pass",
    "def inner(*args, x=1, **kwargs):\n    pass\ninner()",
    "class Inner(torch.nn.Module):\n    pass",
    "async def inner():\n    pass",
    "match unknown:\n    case {'a': [k, *_], **r} if k:\n        pass\n    case _:\n        k = 0",
    "def inner():\n    yield k\n    pass\nlist(inner())",
)


def _nest(drawn: random.Random, tree: ast.Module, other: ast.Module) -> None:
    body = drawn.choice(_bodies(tree))
    first = drawn.randrange(len(body))
    last = drawn.randint(first + 1, len(body))
    nest = ast.parse(drawn.choice(_NESTS)).body
    inside = nest[0]
    place = inside.cases[0].body if isinstance(inside, ast.Match) else inside.body  # type: ignore[attr-defined]
    place[:] = body[first:last]
    body[first:last] = nest


def _swap(drawn: random.Random, tree: ast.Module, other: ast.Module) -> None:
    """One expression in the place of another."""
    places = [
        (node, name, value)
        for node in ast.walk(tree)
        for name, value in ast.iter_fields(node)
        if isinstance(value, ast.expr)
        and isinstance(getattr(value, "ctx", None), (ast.Load, type(None)))
    ]
    if len(places) > 1:
        (_, _, value), (into, name, _) = drawn.sample(places, 2)
        setattr(into, name, copy.deepcopy(value))


def _rename(drawn: random.Random, tree: ast.Module, other: ast.Module) -> None:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    if names:
        drawn.choice(names).id = drawn.choice(names).id


def _deepen(drawn: random.Random, tree: ast.Module, other: ast.Module) -> None:
    """An expression many times in itself."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    if calls:
        call = drawn.choice(calls)
        for _ in range(drawn.choice([1, 3, 30])):
            kind = drawn.randrange(3)
            inner = call.args[0]
            if kind == 0:
                call.args[0] = ast.List([inner, inner], ast.Load())
                inner = call.args[0] = ast.List([inner], ast.Load())
            elif kind == 1:
                call.args[0] = ast.BinOp(inner, ast.Add(), ast.Constant(1))
            else:
                call.args[0] = ast.IfExp(ast.Name("unknown", ast.Load()), inner, ast.Constant(None))


CHANGES = (_shuffle, _double, _drop, _graft, _graft, _nest, _nest, _swap, _rename, _deepen)


# -- judging ------------------------------------------------------------------------------------


class TooLong(Exception):
    """One program takes longer than any may."""


@contextmanager
def limited() -> Iterator[None]:
    """A block that may use so much CPU and memory."""

    def over(*_: object) -> None:
        raise TooLong(f"more than {SECONDS} s of CPU")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def lint(path: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit status and output of the command."""
    from pytest_gradguard.cli import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["lint", "--no-cache", "--jobs", "1", *arguments, str(path)])
    return status, out.getvalue(), err.getvalue()


def wrong(source: str, folder: Path) -> str | None:
    """What is wrong with how the linter takes a valid program; None: nothing."""
    path = folder / "program.py"
    path.write_text(source, encoding="utf-8")
    shown = ("--output-format", "json", "--min-severity", "info")
    try:
        with limited():
            first = lint(path, *shown)
            again = lint(path, *shown)
            if first != again:
                return f"not the same on repeat:\n{first}\n{again}"
            if first[0] == 2 and "nested too deeply" in first[1] + first[2]:
                return None
            if first[0] not in (0, 1):
                return f"exit status {first[0]}: {first[1:]}"
            if not any(one["edits"] for one in json.loads(first[1])["findings"]):
                return None
            fixed = lint(path, "--fix", "--unsafe-fixes", "--min-severity", "info")
            if fixed[0] not in (0, 1):
                return f"exit status {fixed[0]} with --fix: {fixed[1:]}"
            compile(path.read_text(encoding="utf-8"), "repaired", "exec", dont_inherit=True)
    except (Exception, SystemExit) as error:
        import traceback

        return f"{type(error).__name__}: {error}\n{''.join(traceback.format_exc()[-1500:])}"
    return None


def mutations(seeds: range, folder: Path) -> list[str]:
    """What is wrong with the mutated programs of these numbers, which are left in `folder`."""
    sources = examples()
    found = []
    for seed in seeds:
        source = mutated(random.Random(seed), sources)
        what = wrong(source, folder)
        if what is not None:
            kept = folder / f"mutated_{seed}.py"
            kept.write_text(source, encoding="utf-8")
            found.append(f"{kept}: {what}")
    return found


def generated(count: int, seed: int, folder: Path) -> list[str]:
    """The same of so many programs of hypothesmith's."""
    import hypothesmith
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    found: list[str] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(hypothesmith.from_node(), hypothesmith.from_grammar()))
    def look(body: str) -> None:
        source = f"{PREAMBLE}{body}{CALL}"
        try:
            compile(source, "drawn", "exec", dont_inherit=True)
            source.encode()
        except (SyntaxError, ValueError, RecursionError):
            return  # valid by itself, but not behind an import
        what = wrong(source, folder)
        if what is not None:
            kept = folder / f"generated_{len(found)}.py"
            kept.write_text(source, encoding="utf-8")
            found.append(f"{kept}: {what}")

    look()
    return found


def main(arguments: list[str]) -> int:
    """``linter.py SEED COUNT FOLDER``: so many mutated, as many laid out, half as many drawn."""
    import layouts

    seed, count, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore", SyntaxWarning)
    os.chdir(folder)
    seeds = range(seed, seed + count)
    bad = _told(f"{count} mutated programs from seed {seed}", lambda: mutations(seeds, folder))
    bad += _told(f"{count} layouts from seed {seed}", lambda: layouts.layouts(seeds, folder))
    try:
        import hypothesmith  # noqa: F401
    except ImportError:
        print("linter: hypothesmith is not installed", flush=True)
        return 1 if bad else 0
    half = max(count // 2, 1)
    bad += _told(
        f"{half} generated programs from seed {seed}", lambda: generated(half, seed, folder)
    )
    return 1 if bad else 0


def _told(what: str, look: Callable[[], list[str]]) -> list[str]:
    """What is wrong with one kind of programs, printed too."""
    began = time.process_time()
    found = look()
    spent = time.process_time() - began
    print(f"linter: {what}, wrong: {len(found)}, {spent:.0f} s", flush=True)
    print("".join(f"  {one}\n" for one in found), end="", flush=True)
    return found


if __name__ == "__main__":
    import linter  # not under two names: `layouts` imports it

    sys.exit(linter.main(sys.argv[1:]))
