"""The suites of other projects (`suites.toml`), and where their tests are had."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIST = Path(__file__).with_name("suites.toml")
_PATIENCE = 900
"""Seconds that a download may take."""


class LeftOut(Exception):
    """The suite can't be run here; says why."""


@dataclass(frozen=True)
class Known:
    """A difference or a finding that is right, and the reason."""

    kind: str
    """`outcome`, what is left more of (`processes` ...), or the code of a finding."""
    tests: str
    why: str


@dataclass(frozen=True)
class Tests:
    """Where the tests of a suite are."""

    arguments: tuple[str, ...]
    """By which pytest finds them."""
    root: Path
    """The folder that their names begin at."""
    current: Path | None
    """The folder that they run in, where it matters."""
    origin: str


@dataclass(frozen=True)
class Suite:
    name: str
    tests: tuple[str, ...]
    """Modules or packages of an installed suite, else patterns of paths in its source."""
    distribution: str = ""
    """Whose version the record names; without it, Python's."""
    sdist: bool = False
    git: str = ""
    """The repository that has the tests, where the package does not."""
    tag: str = ""
    """The tag in it of version `{version}`."""
    folders: tuple[str, ...] = ()
    """All of the repository that is needed."""
    path: str = ""
    """A folder of the source to import from."""
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    limit: int = 120
    """Seconds for one test."""
    known: tuple[Known, ...] = ()

    @property
    def version(self) -> str:
        """The version that is installed.

        Raises:
            LeftOut: it is not.
        """
        if not self.distribution:
            return platform.python_version()
        try:
            return importlib.metadata.version(self.distribution).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            raise LeftOut(f"{self.distribution} is not installed") from None

    def found(self, sources: Path) -> Tests:
        """The tests, from a folder of `sources` where they are not installed.

        A folder that is there is used as it is; what its file ORIGIN says is noted.

        Raises:
            LeftOut: they can't be had.
        """
        version = self.version
        if not self.sdist and not self.git:
            missing = [name for name in self.tests if importlib.util.find_spec(name) is None]
            if missing:
                raise LeftOut(f"{missing[0]} is not installed")
            return Tests(("--pyargs", *self.tests), _home(self.tests[0]), None, "installed")
        folder = sources / f"{Path(self.git).name or self.distribution}-{version}"
        origin = folder / "ORIGIN"
        if not folder.exists():
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            if self.sdist:
                _download(f"{self.distribution}=={version}", partial)
                (partial / origin.name).write_text("source distribution", encoding="utf-8")
            else:
                tag = self.tag.format(version=version)
                _clone(self.git, tag, self.folders, partial)
                (partial / origin.name).write_text(f"git tag {tag}", encoding="utf-8")
            partial.rename(folder)
        paths = {str(path) for test in self.tests for path in folder.glob(test)}
        if not paths:
            raise LeftOut(f"{folder} has none of its tests")
        said = origin.read_text(encoding="utf-8").strip() if origin.exists() else "unknown"
        return Tests(tuple(sorted(paths)), folder, folder, said)


def suites() -> list[Suite]:
    """All suites, in the order of the list."""
    table = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [_suite(entry) for entry in table["suite"]]


def _home(module: str) -> Path:
    """The folder that the package of `module` is installed in."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        raise LeftOut(f"{module} has no file")
    return Path(spec.origin).parents[1]


def _suite(entry: dict[str, Any]) -> Suite:
    known = tuple(Known(**one) for one in entry.pop("known", ()))
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    return Suite(known=known, **values)


def _download(requirement: str, to: Path) -> None:
    """Unpack the source distribution of `requirement` as the folder `to`."""
    archives = to.with_name(to.name + ".archive")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download"]
    _run([*pip, "--no-deps", "--no-binary", ":all:", "-d", str(archives), requirement])
    with tarfile.open(next(archives.glob("*.tar.gz"))) as archive:
        archive.extractall(archives, filter="data")
    next(path for path in archives.iterdir() if path.is_dir()).rename(to)
    shutil.rmtree(archives)


def _clone(repository: str, tag: str, folders: tuple[str, ...], to: Path) -> None:
    """Check out `folders` of `repository` at `tag`, and nothing else."""
    clone = ["git", "-c", "advice.detachedHead=false", "clone", "-q", "--no-checkout"]
    _run([*clone, "--depth", "1", "--filter=blob:none", "--branch", tag, repository, str(to)])
    anchored = [f"/{folder}" for folder in folders]
    _run(["git", "-C", str(to), "sparse-checkout", "set", "--no-cone", *anchored])
    _run(["git", "-C", str(to), "checkout", "-q"])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LeftOut(f"its tests can't be had: {error}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise LeftOut(f"its tests can't be had: {said[-1]}")
