"""How cost grows with size: tasks, bytes, parameters and files; and what is kept of findings.

    python benchmarks/scale.py [--plot FOLDER] [--only tasks bytes parameters files notes]

Sizes grow by a fixed factor, and each is measured with the guard and without, in turns: where cost
grows in proportion, the lines of a plot are straight. ``--plot`` draws each series as an SVG.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lint_speed import LINT, cpu_seconds

HELD = """
import resource, sys
from joblib import Parallel, delayed
tasks, guarded, found = int(sys.argv[1]), sys.argv[2] == "True", sys.argv[3] == "True"
import torch
from pytest_gradguard import install
if guarded:
    install("record")
def double(x):
    return x if isinstance(x, int) else x.detach() * 2
make = (lambda k: torch.ones(1, requires_grad=True)) if found else int
for result in Parallel(n_jobs=2, return_as="generator")(
    delayed(double)(make(k)) for k in range(tasks)
):
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
"""What a program holds at most; its results are dropped as they come."""


def held(tasks: int, *, guarded: bool = False, found: bool = False) -> float:
    """The most memory in MiB that a program with so many tasks held."""
    arguments = [str(tasks), str(guarded), str(found)]
    done = subprocess.run(
        [sys.executable, "-c", HELD, *arguments], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024


def simulated(layers: int, width: int, repeat: int) -> list[float]:
    """The processor time of a training step on a simulated GPU, beside the CPU."""
    import torch

    from pytest_gradguard.simulation import start, stop

    def step(device: str) -> float:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.ones(32, width, device=device)
        begin = time.process_time()
        for _ in range(10):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
        return time.process_time() - begin

    torch.set_num_threads(1)
    ratios = []
    for _ in range(repeat + 1):
        bare = step("cpu")
        start(1)
        try:
            ratios.append(step("cuda") / bare)
        finally:
            stop()
    return ratios[1:]


Lines = dict[str, list[tuple[float, float]]]
"""Of each line its points: a size, and what it costs."""


def _calls(make: Callable[[int], Any], task: Callable[..., Any], sizes: list[int]) -> Lines:
    """The time of calls with and without the guard: the least of three turns each."""
    from joblib import Parallel, delayed

    from pytest_gradguard import guard

    lines: Lines = {"without the guard": [], "with the guard": []}
    for size in sizes:
        best = dict.fromkeys(lines, math.inf)
        for _ in range(3):
            for name in lines:
                items = make(size)
                with guard("record") if name == "with the guard" else nullcontext():
                    begin = time.perf_counter()
                    Parallel(n_jobs=2)(delayed(task)(item) for item in items)
                    best[name] = min(best[name], time.perf_counter() - begin)
        for name, spent in best.items():
            lines[name].append((size, spent))
    return lines


def nothing(_: Any) -> None:
    pass


def tasks() -> Lines:
    return _calls(range, nothing, [2_500, 10_000, 40_000])


def sent() -> Lines:
    """Bytes in one argument, in KiB."""
    import torch

    return _calls(lambda kib: [torch.zeros(kib * 256)] * 4, nothing, [64, 1_024, 16_384])


def parameters() -> Lines:
    import torch

    def model(count: int) -> list[torch.nn.Module]:
        return [torch.nn.ParameterList([torch.zeros(4)] * count) for _ in range(2)]

    return _calls(model, nothing, [50, 200, 800])


PLAIN = """import os


class Shop_{0}:
    def __init__(self, name, items=()):
        self.name, self.items = name, list(items)

    def total(self):
        return sum(item.price for item in self.items if item.name != "{0}")


def path_{0}(folder):
    return os.path.join(folder, "shop_{0}")
"""
TRAINS = """import torch
from part_{1} import help_{1}


def net_{0}(n):
    return help_{1}(torch.ones, n)
"""
HELPS = """from joblib import Parallel, delayed


def help_{0}(f, items):
    return Parallel(n_jobs=2)(delayed(f)(item) for item in items)
"""


def files(sizes: tuple[int, ...] = (1_000, 4_000, 16_000, 100_000)) -> Lines:
    """A project of so many files: one in ten uses torch, one in a hundred starts workers."""
    line: list[tuple[float, float]] = []
    for count in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for k in range(count):
                if k % 100 == 1:
                    text = HELPS.format(k)
                elif k % 10 == 2:
                    text = TRAINS.format(k, k - k % 100 + 1)
                else:
                    text = PLAIN.format(k)
                place = Path(folder, f"package_{k // 1000}")
                place.mkdir(exist_ok=True)
                (place / f"part_{k}.py").write_text(text)
            line.append((count, cpu_seconds([*LINT, "lint", "--no-cache", "--jobs", "1", folder])))
    return {"gradguard lint": line}


# -- what is noticed -------------------------------------------------------------------------------


def graph(k: int) -> Any:
    import torch

    return torch.ones(1, requires_grad=True) * k


def noticed(count: int, shipped: bool) -> Any:
    """A call whose every task is a finding: of an argument, or of a result."""
    from joblib import Parallel, delayed

    if shipped:
        return Parallel(n_jobs=2)(delayed(nothing)(graph(k)) for k in range(count))
    return Parallel(n_jobs=2)(delayed(graph)(k) for k in range(count))


def ours() -> int:
    """The bytes that the modules of the guard hold, while tracemalloc traces."""
    gc.collect()
    traces = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, "*/pytest_gradguard/*")]
    )
    return sum(trace.size for trace in traces.traces)


def notes(sizes: tuple[int, ...] = (500, 500, 1_000, 2_000, 4_000), repeat: int = 12) -> None:
    """Print what the guard keeps of calls whose every task is a finding, and what they take."""
    from overhead import interval

    from pytest_gradguard import guard

    for shipped in (True, False):
        name = "ships a tensor" if shipped else "returns a graph"
        noticed(100, shipped)
        tracemalloc.start()
        with guard("record") as report:
            for count in sizes:
                before = ours()
                results = noticed(count, shipped)
                held = ours() - before
                del results
                print(
                    f"each task {name}, {count:,} tasks: {held:+,} bytes while the results are "
                    f"held, {ours() - before:+,} after; {len(report.findings)} findings",
                    flush=True,
                )
        tracemalloc.stop()
        ratios = []
        for _ in range(repeat):
            spent = []
            for guarded in (False, True):
                with guard("record") if guarded else nullcontext():
                    begin = time.process_time()
                    noticed(sizes[0], shipped)
                    spent.append(time.process_time() - begin)
            ratios.append(spent[1] / spent[0])
        low, high = interval(sorted(ratios))
        print(
            f"each task {name}: processor time of the parent {statistics.median(ratios):.2f} "
            f"({low:.2f} to {high:.2f}) of that without the guard",
            flush=True,
        )


# -- drawing ---------------------------------------------------------------------------------------

SERIES: dict[str, tuple[Callable[[], Lines], str]] = {
    "tasks": (tasks, "tasks of a call"),
    "bytes": (sent, "KiB of an argument"),
    "parameters": (parameters, "parameters of a module"),
    "files": (files, "files of a project"),
}


def drawn(lines: Lines, size: str) -> str:
    """The lines as SVG, both axes logarithmic: proportional is a slope of one."""
    points = [point for line in lines.values() for point in line]
    edges = [[f(math.log10(p[axis]) for p in points) for f in (min, max)] for axis in (0, 1)]

    def place(x: float, y: float) -> str:
        (left, right), (low, high) = edges
        across = (math.log10(x) - left) / (right - left or 1)
        up = (math.log10(y) - low) / (high - low or 1)
        return f"{60 + 300 * across:.1f},{210 - 170 * up:.1f}"

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 270" font-family="sans-serif" '
        'font-size="12"><rect width="560" height="270" fill="white"/>'
        '<path d="M60 30V215H370" fill="none" stroke="#999"/><text x="10" y="20">seconds</text>'
        f'<text x="215" y="255" text-anchor="middle">{size}</text>'
    ]
    for colour, (name, line) in zip(("#888888", "#d55e00"), lines.items(), strict=False):
        path = " ".join(place(*point) for point in line)
        last_y = float(path.rpartition(",")[2])
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shift = 12 if colour == "#d55e00" else -4
        parts.append(f'<text x="368" y="{last_y + shift}" fill="{colour}">{name}</text>')
    line = max(lines.values(), key=lambda it: it[-1][1])
    for x, y in line:
        left, _, up = place(x, y).partition(",")
        parts.append(f'<text x="{left}" y="232" text-anchor="middle">{x:,.0f}</text>')
        parts.append(f'<text x="55" y="{float(up) + 4}" text-anchor="end">{y:.2g}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="where the SVGs go")
    parser.add_argument("--only", nargs="+", choices=[*SERIES, "notes"], default=[*SERIES, "notes"])
    options = parser.parse_args()
    for name in options.only:
        if name == "notes":
            notes()
            continue
        measure, size = SERIES[name]
        lines = measure()
        for title, line in lines.items():
            shown = "   ".join(f"{x:,.0f}: {y:.3f} s" for x, y in line)
            print(f"{size}, {title}:   {shown}", flush=True)
        if options.plot:
            (options.plot / f"scale_{name}.svg").write_text(drawn(lines, size), encoding="utf-8")


if __name__ == "__main__":
    main()
