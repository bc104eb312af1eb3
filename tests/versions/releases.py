"""The releases that package indexes offer, by the Pythons that have a wheel of them.

``python tests/versions/releases.py`` asks the index that pip is configured for, and writes what it
says to `releases.json`, from which the matrix of versions is made. With ``--check`` it writes
nothing, and fails where a release has come since: the newest one is always to be in the matrix.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from pytest_gradguard.runtime.kernel.oldest import OLDEST  # noqa: E402

MET_BY_OTHERS = {"scikit-learn": "1.3.0", "pytest-xdist": "3.3.0"}
"""The oldest releases of libraries that the guard does not watch itself, but works beside."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
RECORDED = Path(__file__).parent / "releases.json"

Releases = dict[str, dict[str, list[str]]]
"""By library and release, newest first: the Pythons that have a wheel of it."""


def key(version: str) -> tuple[int, ...]:
    """What a final release is sorted by."""
    return tuple(map(int, version.split(".")))


def recorded() -> Releases:
    """What was asked last."""
    known: Releases = json.loads(RECORDED.read_text(encoding="utf-8"))
    return known


def floors() -> dict[str, str]:
    """By library, its oldest supported release, as the package declares it."""
    watched = {library: OLDEST[library] for library in ("joblib", "torch")}
    watched["tensorflow-cpu"] = OLDEST["tensorflow"]
    watched |= {library: OLDEST[library] for library in ("keras", "dask")}
    return {**watched, **MET_BY_OTHERS, "pytest": dependencies()["pytest"]}


def dependencies() -> dict[str, str]:
    """By name, the oldest release of what the package depends on."""
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = declared.partition("\ndependencies = [")[2].partition("]")[0]
    return dict(re.findall(r'"([\w-]+)>=([\d.]+)', section))


def asked() -> Releases:
    """What the index says now of the releases that are supported."""
    found: Releases = {}
    for library, floor in floors().items():
        pythons: dict[str, list[str]] = {}
        for python in PYTHONS:
            for release in _offered(library, python):
                if key(release) < key(floor):
                    continue
                pythons.setdefault(release, []).append(python)
        found[library] = dict(sorted(pythons.items(), key=lambda one: key(one[0]), reverse=True))
    return found


def _offered(library: str, python: str) -> set[str]:
    """The final releases with a wheel for a Python on Linux (x86-64)."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions"]
    wheels = ["--json", "--only-binary=:all:", f"--python-version={python}"]
    platforms = [f"--platform={platform}_x86_64" for platform in PLATFORMS]
    command = [*pip, library, *wheels, *platforms]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0 and "No matching distribution" in done.stderr:
        return set()
    if done.returncode != 0:
        raise SystemExit(f"pip could not list the releases of {library}: {done.stderr.strip()}")
    versions = (version.partition("+")[0] for version in json.loads(done.stdout)["versions"])
    return {version for version in versions if re.fullmatch(r"\d+(\.\d+)*", version)}


def moved(known: Releases, now: Releases) -> list[str]:
    """What has come since `known`: newest releases, and Pythons that they are for."""
    lines = []
    for library, releases in now.items():
        newest = next(iter(releases))
        if newest not in known.get(library, {}):
            last = next(iter(known.get(library, {"none": []})))
            lines.append(f"{library} {newest} is out; the matrix ends at {last}")
        elif releases[newest] != known[library][newest]:
            lines.append(f"{library} {newest} now has wheels for {', '.join(releases[newest])}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail where a release has come since")
    check = parser.parse_args().check
    now = asked()
    if check:
        lines = moved(recorded(), now)
        hint = "make releases, then make versions" if lines else "The matrix ends at the newest."
        print("\n".join([*lines, hint]))
        return 1 if lines else 0
    blocks = (
        f' "{library}": {{\n'
        + ",\n".join(f'  "{one}": {json.dumps(pythons)}' for one, pythons in releases.items())
        + "\n }"
        for library, releases in now.items()
    )
    RECORDED.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
