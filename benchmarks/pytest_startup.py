"""What the plugin adds to the start of pytest: absent, installed but off, and on.

One empty test, other plugins kept out; the three kinds of run alternate, so that a busy machine
slows all of them alike. Prints the median of each and its ratio to pytest without the plugin, for
the time on the clock and for the processor's time, which a busy machine changes less.

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
from pathlib import Path

VARIANTS = {
    "absent": [],
    "off": ["-p", "pytest_gradguard.plugin"],
    "on": ["-p", "pytest_gradguard.plugin", "--gradguard"],
}


def seconds(folder: str, options: list[str]) -> tuple[float, float]:
    """The time on the clock and the processor's time of one run."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    clock = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=30, help="default 30")
    rounds = parser.parse_args().rounds
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_empty.py").write_text("def test_nothing():\n    pass\n")
        for options in VARIANTS.values():
            seconds(folder, options)  # writes the byte code
        for number in range(rounds):
            names = list(VARIANTS)
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                times[name].append(seconds(folder, VARIANTS[name]))
    print(f"{rounds} rounds, Python {sys.version.split()[0]}; medians of the whole run")
    for which, title in enumerate(("clock", "processor")):
        medians = {
            name: statistics.median(both[which] for both in values)
            for name, values in times.items()
        }
        for name, median in medians.items():
            added = median - medians["absent"]
            ratio = median / medians["absent"]
            print(
                f"{title:<9} {name:<6} {median * 1000:7.1f} ms  "
                f"{added * 1000:+6.1f} ms  x{ratio:.3f}"
            )


if __name__ == "__main__":
    main()
