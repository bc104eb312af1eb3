"""CPU seconds of ``gradguard lint`` for packages of the index, cold and after one file has changed.

    python benchmarks/lint_packages.py [NAME ...]

Each release is downloaded once, into a folder of the user's cache. One process does all of the
work, so that the number of cores does not matter. Beside the linter's time stands
that of parsing the same files with `ast`, taken in turn: the ratio of both depends on the machine
far less. What is changed is one file, which gets a new function at its end; files spread over the
whole package take turns, and the cache knows the findings of all others.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lint_speed import LINT, cpu_seconds

RELEASES = {
    "avalanche-lib": "0.6.0",
    "darts": "0.48.1",
    "deepchem": "2.8.0",
    "fedml": "0.9.6",
    "gluonts": "0.17.0",
    "ludwig": "0.11.0",
    "monai": "1.6.1",
    "sbi": "0.27.0",
    "skrl": "2.1.1",
}

CHANGED = 3
"""How many files of a package are changed, one after the other."""

_PARSE = """
import ast, pathlib, sys, warnings
warnings.simplefilter("ignore")
for path in pathlib.Path(sys.argv[1]).rglob("*.py"):
    try:
        ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        pass
"""

_NEW = b"\n\ndef added_by_the_benchmark(value):\n    return value + 1\n"


class NotFetched(Exception):
    """A release could not be downloaded."""


class Times(NamedTuple):
    """CPU seconds for one package: the linter's, and those of parsing its files, taken in turn."""

    cold: tuple[float, float]
    changed: list[tuple[float, float]]


def downloads() -> Path:
    """The folder that keeps what was downloaded."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "gradguard", "packages")


def fetched(name: str) -> Path:
    """The folder with the source of the release of `name`.

    Raises:
        NotFetched: it is not there yet, and pip cannot download it.
    """
    release = f"{name}=={RELEASES[name]}"
    folder = downloads() / release.replace("==", "-")
    if folder.is_dir():
        return folder
    downloads().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads()) as place:
        options = ["--no-deps", "--retries", "1", "--dest", place]
        command = [sys.executable, "-m", "pip", "download", *options, release]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise NotFetched(f"pip cannot download {release}")
        (archive,) = Path(place).iterdir()
        unpacked = Path(place, "unpacked")
        shutil.unpack_archive(archive, unpacked, "zip" if archive.suffix == ".whl" else None)
        unpacked.rename(folder)
    return folder


def measure(source: Path) -> Times:
    """Lint a copy of `source`: with an empty cache, and after changes of single files."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(source, Path(place, source.name)))
        lint = [*LINT, "lint", "--jobs", "1", str(folder)]
        parse = [sys.executable, "-c", _PARSE, str(folder)]
        cold = (cpu_seconds(lint), cpu_seconds(parse))
        changed = []
        for path in spread(folder):
            before = path.read_bytes()
            path.write_bytes(before + _NEW)
            changed.append((cpu_seconds(lint), cpu_seconds(parse)))
            path.write_bytes(before)
        return Times(cold, changed)


def spread(folder: Path) -> Iterator[Path]:
    """Files of a package that are spread evenly over it."""
    paths = sorted(folder.rglob("*.py"))
    for turn in range(CHANGED):
        yield paths[(2 * turn + 1) * len(paths) // (2 * CHANGED)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RELEASES))
    names = parser.parse_args().names or list(RELEASES)
    print(f"{'':20} {'cold':>9} {'changed':>9} {'parsing':>9} {'ratio':>7}")
    total = 0.0
    for name in names:
        try:
            times = measure(fetched(name))
        except NotFetched as error:
            print(f"{name:20} skipped: {error}")
            continue
        (cold, parsing), total = times.cold, total + times.cold[0]
        changed = statistics.median(ours for ours, _ in times.changed)
        figures = f"{cold:>8.2f}s {changed:>8.2f}s {parsing:>8.2f}s {cold / parsing:>7.2f}"
        print(f"{name:20} {figures}", flush=True)
    print(f"{'all':20} {total:>8.2f}s")


if __name__ == "__main__":
    main()
