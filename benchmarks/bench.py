"""Everything that `budget.toml` limits, measured in one run: `make bench`.

    python benchmarks/bench.py [--only SECTION ...] [--repeat N]

Each figure is the median of ratios that were taken in turns. It ends with one line for each row
that is over its budget, and the exit status 1 where there is one.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import lint_packages
import lint_speed
import pytest_startup
import scale
from lint_speed import LINT
from ruff.__main__ import find_ruff_bin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent


class Row(NamedTuple):
    """A ratio that was measured; `low`: what it is at least, with 95 % confidence."""

    name: str
    ratio: float
    low: float


class Skipped(Exception):
    """The rest of a section cannot be measured here."""


def row(name: str, ratios: Sequence[float]) -> Row:
    from overhead import interval

    return Row(name, statistics.median(ratios), interval(sorted(ratios))[0])


def turns(first: list[str], second: list[str], repeat: int) -> list[float]:
    """Ratios of the processor time of two commands, which take turns."""
    lint_speed.cpu_seconds(first)  # writes byte code
    return [lint_speed.cpu_seconds(first) / lint_speed.cpu_seconds(second) for _ in range(repeat)]


def guard(_: Sequence[str], repeat: int) -> Iterator[Row]:
    from overhead import VARIANTS, WORKLOADS, measure

    VARIANTS.pop("naive", None)
    for name, workload in WORKLOADS.items():
        yield row(name, measure(workload, repeat, 2)[0]["on"])


def ddp(_: Sequence[str], repeat: int) -> Iterator[Row]:
    command = [sys.executable, str(HERE / "ddp.py"), "--repeat", str(repeat)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for found in re.finditer(r"(?m)^(.+?) +\d+ µs +[\d.]+ +([\d.]+) +([\d.]+) to", printed):
        yield Row(found[1], float(found[2]), float(found[3]))


def start(names: Sequence[str], repeat: int) -> Iterator[Row]:
    taken = pytest_startup.measure(2 * repeat)
    for name in names:
        pairs = zip(taken[name], taken["absent"], strict=True)
        yield row(name, [ours / theirs for (_, ours), (_, theirs) in pairs])


def imports(names: Sequence[str], repeat: int) -> Iterator[Row]:
    for name in names:
        ours, _, theirs = name.partition(" beside ")
        bare = "pass" if theirs == "nothing" else f"import {theirs}"
        commands = [[sys.executable, "-c", bare + more] for more in (f"\nimport {ours}", "")]
        yield row(name, turns(commands[0], commands[1], repeat))


MEAN = "geometric mean"
"""The row of `lint` over its packages, turn by turn."""
SITE = "site-packages"
"""The row of `lint` for all that is installed here."""


def lint(names: Sequence[str], repeat: int) -> Iterator[Row]:
    ruff = [find_ruff_bin(), "check", "--isolated", "--no-cache", "-q", "--select", "F401"]
    paths = {**lint_speed.installed(), SITE: Path(find_ruff_bin.__code__.co_filename).parents[1]}
    of_packages = []
    for name in filter(paths.get, names):
        ours, theirs = [*LINT, "lint", "--no-cache", str(paths[name])], [*ruff, str(paths[name])]
        if name == SITE:
            yield row(name, turns(ours, theirs, 1))
            continue
        of_packages.append(turns(ours, theirs, max(repeat // 3, 3)))
        yield row(name, of_packages[-1])
    yield row(MEAN, [statistics.geometric_mean(turn) for turn in zip(*of_packages, strict=True)])


ALL = "all of them"
"""The row of `packages` for those that could be downloaded, together."""
CHANGED = "one file changed in "


def packages(names: Sequence[str], _: int) -> Iterator[Row]:
    wanted = [name for name in names if name in lint_packages.RELEASES]
    try:
        folders = {name: lint_packages.fetched(name) for name in wanted}
    except lint_packages.NotFetched as error:
        raise Skipped(str(error)) from None
    cold = []
    for name, folder in folders.items():
        times = lint_packages.measure(folder)
        cold.append(times.cold)
        yield row(name, [times.cold[0] / times.cold[1]])
        yield row(CHANGED + name, [ours / parsing for ours, parsing in times.changed])
    yield row(ALL, [sum(ours for ours, _ in cold) / sum(parsing for _, parsing in cold)])


def simulation(names: Sequence[str], repeat: int) -> Iterator[Row]:
    for name in names:
        layers, width = map(int, re.findall(r"\d+", name))
        yield row(name, scale.simulated(layers, width, repeat))


def memory(names: Sequence[str], repeat: int) -> Iterator[Row]:
    for name in names:
        found, tasks = "finding" in name, int(name.split()[0].replace(",", ""))
        pairs = [
            (scale.held(tasks, guarded=True, found=found), scale.held(tasks, found=found))
            for _ in range(max(repeat // 5, 3))
        ]
        yield row(name, [ours / theirs for ours, theirs in pairs])


SECTIONS: dict[str, Callable[[Sequence[str], int], Iterator[Row]]] = {
    "lint": lint,
    "packages": packages,
    "start": start,
    "import": imports,
    "memory": memory,
    "simulation": simulation,
    "guard": guard,
    "ddp": ddp,
}


def measured(section: str, limits: dict[str, float], repeat: int) -> list[str]:
    """Measure a section, and print its rows; what is over its budget, or has none.

    Raises:
        Skipped: it cannot be measured here.
    """
    over = []
    seen = set()
    for name, ratio, low in SECTIONS[section](list(limits), repeat):
        seen.add(name)
        limit = limits.get(name)
        shown = f"{limit:>7.2f}" if limit is not None else "   none"
        print(f"{f'{section}: {name}':60} {ratio:>7.3f} {low:>9.3f} {shown}", flush=True)
        if limit is None:
            over.append(f"{section}: {name!r} has no budget in budget.toml")
        elif low > limit:
            over.append(f"{section}: {name!r} costs {ratio:.2f}, its budget is {limit:.2f}")
    return over + [f"{section}: {name!r} was not measured" for name in limits.keys() - seen]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--repeat", type=int, default=15, help="turns (default 15)")
    parser.add_argument("--budget", type=Path, default=HERE / "budget.toml", metavar="FILE")
    options = parser.parse_args()
    budget: dict[str, dict[str, float]] = tomllib.loads(options.budget.read_text("utf-8"))
    over = []
    print(f"{'':60} {'ratio':>7} {'at least':>9} {'budget':>7}")
    for section in options.only:
        limits = budget.get(section, {})
        try:
            over += measured(section, limits, options.repeat)
        except Skipped as error:
            print(f"{section}: skipped, {error}", flush=True)
    for line in over:
        print(f"over budget: {line}" if "costs" in line else line, file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main())
