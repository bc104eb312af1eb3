"""What the plugin adds to the start of pytest: not installed, installed but off, and on.

One empty test, in two folders of packages: pytest and what it needs, and the same with the plugin
as a wheel would install it, so that pytest finds, loads and rewrites it as it does elsewhere. The
three kinds of run alternate. Prints the median of each and of its ratios to pytest without the
plugin, for the processor's time and for the time on the clock, which a busy machine changes more.

    python benchmarks/pytest_startup.py [ROUNDS]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

VARIANTS = {"absent": ("bare", []), "off": ("plugin", []), "on": ("plugin", ["--gradguard"])}
"""The folder of packages, and the options of pytest."""
PLUGIN = "pytest-gradguard"
OURS = ("pytest_gradguard", "gradguard_lint")


@contextmanager
def folders() -> Iterator[Path]:
    """A folder with an empty test in `tests`, and the packages in `bare` and `plugin`."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for kind in ("tests", "bare", "plugin"):
            root.joinpath(kind).mkdir()
        root.joinpath("tests", "test_empty.py").write_text("def test_nothing():\n    pass\n")
        for distribution in _needed("pytest", {}).values():
            for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
                for kind in ("bare", "plugin"):
                    root.joinpath(kind, top).symlink_to(str(distribution.locate_file(top)))
        _install(root / "plugin")
        yield root


def _needed(name: str, known: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """A distribution, and those that it cannot do without."""
    if name not in known:
        known[name] = metadata.distribution(name)
        for text in known[name].requires or []:
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                _needed(one.name, known)
    return known


def _install(folder: Path) -> None:
    """Put the plugin there as a wheel would, without copying it."""
    distribution = metadata.distribution(PLUGIN)
    info = folder / f"{OURS[0]}-{distribution.version}.dist-info"
    info.mkdir()
    files = []
    for package in OURS:
        home = Path(__import__(package).__file__).parent
        folder.joinpath(package).symlink_to(home)
        files += [f"{package}/{path.relative_to(home)}" for path in home.rglob("*.py")]
    for name in ("METADATA", "entry_points.txt"):
        info.joinpath(name).write_text(distribution.read_text(name) or "")
        files.append(f"{info.name}/{name}")
    info.joinpath("RECORD").write_text("".join(f"{path},,\n" for path in sorted(files)))


def seconds(root: Path, variant: str) -> tuple[float, float]:
    """The time on the clock and the processor's time of one run."""
    packages, options = VARIANTS[variant]
    command = [sys.executable, "-S", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": str(root / packages)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, cwd=root / "tests", env=environment, capture_output=True)
    clock = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{variant}: {(done.stdout + done.stderr).decode()}")
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Both times of each variant, round by round; one round before them writes byte code."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
    names = list(VARIANTS)
    with folders() as root:
        for number in range(-1, rounds):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                taken = seconds(root, name)
                if number >= 0:
                    times[name].append(taken)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=30, help="default 30")
    rounds = parser.parse_args().rounds
    times = measure(rounds)
    print(f"{rounds} rounds, Python {sys.version.split()[0]}; medians of the whole run")
    for which, title in ((1, "processor"), (0, "clock")):
        for name, values in times.items():
            median = statistics.median(both[which] for both in values)
            ratio = statistics.median(
                one[which] / bare[which] for one, bare in zip(values, times["absent"], strict=True)
            )
            print(f"{title:<9} {name:<6} {median * 1000:7.1f} ms  x{ratio:.3f}")


if __name__ == "__main__":
    main()
