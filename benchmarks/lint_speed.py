"""CPU seconds of ``gradguard lint`` beside ``ruff check --select F401``, whole processes, cold.

    python benchmarks/lint_speed.py [PATH ...]
    python benchmarks/lint_speed.py --growth

Without paths it uses those of eight packages that are installed. The runs of the two tools take
turns, so that both meet the same machine; the figures are the medians. The last lines give the
start-up: one small clean file beside ``python -c pass``. ``--growth`` measures programs that become
longer, and projects with more files: the time for each function must stay what it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LINT = [sys.executable, "-c", "from pytest_gradguard.cli import main; import sys; sys.exit(main())"]


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one run of `command` and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def compare(first: list[str], second: list[str], repeats: int) -> tuple[float, float]:
    """The medians of both commands, run in turn."""
    pairs = [(cpu_seconds(first), cpu_seconds(second)) for _ in range(repeats)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


PACKAGES = (
    *("sklearn", "torch/utils", "distributed", "keras/src", "torch/distributed"),
    *("skorch", "joblib", "dask"),
)


def installed() -> dict[str, Path]:
    """The folders of `PACKAGES`, where they are installed."""
    found = {}
    for package in PACKAGES:
        name, _, below = package.partition("/")
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found[package] = (Path(spec.origin).parent / below).resolve()
    return found


FUNCTION = """

def work_{0}(k, flag=False):
    total = 0
    for row in range(3):
        if flag and k > {0}:
            total += row
    matrix = torch.ones(50, 50)
    return float((matrix @ matrix).sum()) + total


def main_{0}(items, n):
    if n == 1:
        return [work_{0}(item) for item in items]
    with Pool(n) as pool:
        return pool.map(work_{0}, items)
"""


def growth() -> None:
    """The time for one function, in one file and in many, as there are more of them."""
    head = "import torch\nfrom multiprocessing import Pool\n"
    print(f"{'functions':>10} {'one file':>12} {'ten a file':>12}   ms of each")
    for count in (50, 100, 200, 400):
        times = []
        for length in (count, 10):
            with tempfile.TemporaryDirectory() as folder:
                for start in range(0, count, length):
                    text = "".join(FUNCTION.format(k) for k in range(start, start + length))
                    (Path(folder) / f"part_{start}.py").write_text(head + text)
                times.append(cpu_seconds([*LINT, "lint", "--no-cache", "--jobs", "1", folder]))
        print(f"{count:>10} {times[0] / count * 1e3:>12.2f} {times[1] / count * 1e3:>12.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--growth", action="store_true", help="programs that become longer")
    options = parser.parse_args()
    if options.growth:
        growth()
        return
    ruff = os.path.join(os.path.dirname(sys.executable), "ruff")
    print(f"{'':40} {'files':>6} {'gradguard':>10} {'ruff F401':>10} {'ratio':>6}")
    ratios = []
    for path in options.paths or installed().values():
        count = sum(1 for _ in path.rglob("*.py"))
        ours, theirs = compare(
            [*LINT, "lint", "--no-cache", str(path)],
            [ruff, "check", "--isolated", "--no-cache", "--select", "F401", "-q", str(path)],
            options.repeats,
        )
        ratios.append(ours / theirs)
        name = "/".join(path.parts[-2:])
        print(f"{name:40} {count:>6} {ours:>9.3f}s {theirs:>9.3f}s {ours / theirs:>6.2f}")
    print(f"{'geometric mean':82} {statistics.geometric_mean(ratios):>6.2f}")
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.py"
        small.write_text("import os\nprint(os.getcwd())\n")
        ours, bare = compare(
            [*LINT, "lint", "--no-cache", str(small)],
            [sys.executable, "-c", "pass"],
            options.repeats,
        )
    print(f"one small clean file: {1000 * ours:.0f} ms, {1000 * (ours - bare):.0f} ms above Python")


if __name__ == "__main__":
    main()
