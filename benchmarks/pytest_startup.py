"""What the plugin adds to the start of pytest: absent, installed but off, and on.

One empty test, other plugins kept out; the three kinds of run alternate, so that a busy machine
slows all of them alike. Prints the median of each, and its ratio to pytest without the plugin.

    python benchmarks/pytest_startup.py [ROUNDS]
"""

from __future__ import annotations

import os
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


def seconds(folder: str, options: list[str]) -> float:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_empty.py").write_text("def test_nothing():\n    pass\n")
        for options in VARIANTS.values():
            seconds(folder, options)  # writes the byte code
        for number in range(rounds):
            names = list(VARIANTS)
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                times[name].append(seconds(folder, VARIANTS[name]))
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{rounds} rounds, Python {sys.version.split()[0]}; medians of the whole run")
    for name, median in medians.items():
        added = median - medians["absent"]
        ratio = median / medians["absent"]
        print(f"{name:<7} {median * 1000:7.1f} ms   +{added * 1000:5.1f} ms   x{ratio:.3f}")


if __name__ == "__main__":
    main()
