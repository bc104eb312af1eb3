"""Results that take long to make: made once for all the processes of a run, or for many runs.

What no change of ours can alter (how a program ends without the guard, what a framework does) is
known by a digest of the program, of the versions of what it imports and of the platform. For the
versions and the platform of whoever ran `make truth` last, it is recorded in the repository, so
that a run elsewhere need not find it out again; for others it is kept from run to run.

What the guard and the linter make of programs drawn or written for that is kept as well, until one
of their files changes, or anything that is installed. Continuous integration makes it each time.
"""

from __future__ import annotations

import ast
import functools
import getpass
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from scheduling import group_of

import gradguard_lint
import pytest_gradguard
from pytest_gradguard.platforms import HERE


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder for results of earlier runs: the user's cache if it is writable."""
    caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = environment.get("GRADGUARD_TEST_CACHE")
    folder = Path(named).absolute() if named else caches.absolute() / "gradguard-tests"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return Path(tempfile.gettempdir(), f"gradguard-tests-{getpass.getuser()}")
    return folder


KEPT = cache_folder(os.environ)
"""Where results of earlier runs lie."""

RECORDED = Path(__file__).parent / "recorded" / "results.json"
"""Those that the repository knows: the lines of each, by its name in `KEPT`."""

GUARD = Path(pytest_gradguard.__file__).parent
LINTER = Path(gradguard_lint.__file__).parent

RUNNING = [Path(__file__).with_name(f"{name}.py") for name in ("children", "warm", "warm_workers")]
"""How programs are run here."""

ANEW = "GRADGUARD_TRUTH" in os.environ
"""Whether this run makes anew what is recorded (`make truth`)."""

_used: defaultdict[str, set[Path]] = defaultdict(set)
"""By the group of tests that used them."""


def folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of pytest-xdist share, or this process's where there are none."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def once(folder: Path, key: str, produce: Callable[[], str]) -> str:
    """What `produce` returns. Of all the processes that share `folder`, the first one calls it."""
    result = folder / f"{key}.txt"
    with (folder / f"{key}.lock").open("w") as lock:
        HERE.lock_opened(lock)  # until the file is closed
        if not result.exists():
            said = produce()
            result.write_text(said, encoding="utf-8")
        return result.read_text(encoding="utf-8")


def remembered(key: str, sources: Iterable[Path], produce: Callable[[], str]) -> str:
    """What `produce` returned in this or an earlier run, for sources as they are now.

    Args:
        key: what it is, among all that these sources give; a file's name.
        sources: the files that it depends on; what they import from elsewhere counts by version.
        produce: called where nothing is known; where it raises, nothing is kept.
    """
    name = _name(key, sources)
    if name in _recorded():
        return "\n".join(_recorded()[name])
    return _kept(KEPT, name, produce)


def until_changed(
    key: str, sources: Iterable[Path], ours: Iterable[Path], produce: Callable[[], str]
) -> str:
    """What `produce` returned in this or an earlier run, for all that it depends on as it is now.

    Args:
        key: as for `remembered`; there is one result of each.
        sources: the program, and the tests' own files that have a part in it.
        ours: the packages of this repository that are tried: `GUARD`, `LINTER`.
        produce: called where nothing is known; where it raises, nothing is kept.
    """
    if ANEW or os.environ.get("CI"):
        return produce()
    installed = "\n".join(_versions(frozenset(_distributions())))
    here = hashlib.sha256("\n".join([installed, *map(_digest, ours)]).encode()).hexdigest()
    name = f"{_name(key, [*RUNNING, *sources])}-{here[:24]}"
    folder = KEPT / "until changed"
    said = _kept(folder, name, produce)
    for old in folder.glob(f"{key}-*"):
        if old.stem != name:
            old.unlink(missing_ok=True)
    return said


def _kept(folder: Path, name: str, produce: Callable[[], str]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    _used[_now()].add(folder / f"{name}.txt")
    return once(folder, name, produce)


@functools.cache
def _digest(package: Path) -> str:
    """All that a package holds."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_known(key: str, sources: Iterable[Path]) -> bool:
    """Whether `remembered` would have to make nothing."""
    name = _name(key, sources)
    return name in _recorded() or (KEPT / f"{name}.txt").exists()


def forget(test: str) -> None:
    """Remove what a test, and those that stay with it, used: the next run is not to fail by it."""
    for path in _used.pop(group_of(test), ()):
        path.unlink(missing_ok=True)


def _now() -> str:
    """The group of the test that runs."""
    return group_of(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])


def record() -> None:
    """Write to the repository what this run, or another with the same folder, has kept."""
    results = {
        path.stem: _anywhere(path.read_text(encoding="utf-8")).splitlines()
        for path in sorted(KEPT.glob("*.txt"))
    }
    RECORDED.parent.mkdir(exist_ok=True)
    text = json.dumps(results, indent=1, ensure_ascii=False)
    RECORDED.write_text(f"{text}\n", encoding="utf-8")


def _anywhere(text: str) -> str:
    """`text` without the folders of this machine, which tracebacks name."""
    for folder in (sysconfig.get_path("purelib"), str(Path(__file__).parents[1])):
        text = text.replace(folder + os.sep, "")
    return text


@functools.cache
def _recorded() -> dict[str, list[str]]:
    if ANEW or not RECORDED.exists():
        return {}
    known: dict[str, list[str]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return known


def _name(key: str, sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    imported = set()
    for source in sorted(sources):
        text = source.read_bytes()
        digest.update(source.name.encode() + b"\0" + text)
        imported |= _imports(ast.parse(text))
    cores = "one core" if os.cpu_count() == 1 else "several cores"
    here = (sys.platform, platform.machine(), platform.python_version(), cores)
    digest.update("\n".join([*here, *_versions(frozenset(imported))]).encode())
    return f"{key}-{digest.hexdigest()[:24]}"


def _imports(tree: ast.Module) -> set[str]:
    """The packages that a program imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names


@functools.cache
def _versions(packages: frozenset[str]) -> list[str]:
    """Those of them that are installed, with their versions."""
    distributions = {
        (name, importlib.metadata.version(name))
        for package in packages
        for name in _distributions().get(package, ())
    }
    return [f"{name}=={version}" for name, version in sorted(distributions)]


_distributions = functools.cache(importlib.metadata.packages_distributions)
