"""``gradguard doctor``: versions, what the guard watches here, what it does not, and why.

It imports what starts workers, and patches it as the guard does. Frameworks are not imported: that
takes seconds, and some of them take a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import multiprocessing
import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata, util
from typing import Any

from pytest_gradguard import __version__, disabled
from pytest_gradguard.cli.streams import write
from pytest_gradguard.cli.words import table
from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime import integrations
from pytest_gradguard.runtime.kernel import frameworks, registry, watching
from pytest_gradguard.runtime.kernel.oldest import OLDEST, too_old

__all__ = ["build_parser", "run"]


def build_parser() -> argparse.ArgumentParser:
    """The parser of this subcommand's arguments."""
    parser = argparse.ArgumentParser(
        prog="gradguard doctor",
        description="Show versions, what is watched in this environment, what is not, and why.",
        epilog="Exit status: 0; 1 where something that is installed cannot be watched.",
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "json"),
        default="text",
        help="how to write it (default: %(default)s)",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="list the modules that are watched, not only the libraries",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Examine this environment. Returns 1 where something that is installed cannot be watched."""
    found = examine()
    if args.output_format == "json":
        write(json.dumps(found, indent=2) + "\n")
    else:
        write("\n".join(_lines(found, modules=args.verbose)) + "\n")
    closed = any(one["status"] == "not watched" for one in found["integrations"])
    closed |= any(too_old(one["name"], one["version"]) for one in found["frameworks"])
    return 1 if closed else 0


def examine() -> dict[str, Any]:
    """What there is to say, as plain values."""
    integrations.load()
    return {
        "schema": 1,
        "tool": {"name": "gradguard", "version": __version__},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "start_method": multiprocessing.get_all_start_methods()[0],  # the default comes first
        "missing_here": HERE.missing(),
        "disabled": disabled.is_disabled(),
        "integrations": [
            _module(one) for known in registry.registered.values() for one in known.watched
        ],
        "joblib_backends": sorted(_joblib_backends()),
        "frameworks": [
            {"name": name, "version": _version(name), "oldest": OLDEST.get(name)}
            for name in frameworks.package_names()
        ],
    }


def _joblib_backends() -> set[str]:
    """What the findings call the workers of joblib's backends that are known."""
    known = filter(None, registry.joblib_backends.values())
    return {getattr(one, "workers", one).name for one in known}


def _module(watched: registry.Watched) -> dict[str, Any]:
    library = watched.module.partition(".")[0]
    about = {
        "name": watched.integration.name,
        "module": watched.module,
        "version": None if library in sys.stdlib_module_names else _version(library),
        "oldest": OLDEST.get(library),
        "status": "watched",
        "reason": None,
    }
    if disabled.is_disabled():
        return {**about, "status": "disabled", "reason": f"{disabled.VARIABLE} is set"}
    try:
        if util.find_spec(library) is None:
            return {**about, "status": "not installed"}
        with _quiet():
            import_module(watched.module)
    except ModuleNotFoundError as error:
        return {**about, "status": "not installed", "reason": f"no module {error.name}"}
    except Exception as error:
        return {**about, "status": "not watched", "reason": f"{type(error).__name__}: {error}"}
    try:
        with _quiet():
            watching.start(watched)
            watched.apply()
        if not watched.applied:
            about["status"] = "not watched" if watched.reason else "nothing to watch"
            about["reason"] = watched.reason
    except Exception as error:
        about.update(status="not watched", reason=f"{type(error).__name__}: {error}")
    finally:
        watching.stop(watched)
    return about


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A block in which what is imported prints nothing, and does not warn."""
    import warnings

    nowhere = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(nowhere):
            yield


def _version(library: str) -> str | None:
    """The version of an installed library; None where it is not installed."""
    distributions = _distributions().get(library) or [library]
    try:
        return metadata.version(distributions[0])
    except metadata.PackageNotFoundError:
        return None


_distributions = functools.cache(metadata.packages_distributions)  # reads what lists all files


def _lines(found: dict[str, Any], *, modules: bool) -> Iterator[str]:
    yield f"gradguard {__version__}, Python {found['python']}, {found['platform']}"
    if found["disabled"]:
        yield f"disabled: {disabled.VARIABLE} is set, so nothing is watched"
    yield f"processes start by {found['start_method']} on {HERE.name} unless the program chooses"
    if found["missing_here"]:
        yield f"on {HERE.name} (docs/platforms.md):"
        yield from (f"  {line}" for line in found["missing_here"])
    yield ""
    watched = found["integrations"] if modules else _by_library(found["integrations"])
    rows = [
        (one["module"], one["version"] or "", one["status"], one["reason"] or "") for one in watched
    ]
    yield from table([("starts workers", "version", "", ""), *rows])
    if any(_library(one) == "joblib" and one["version"] for one in found["integrations"]):
        yield f"joblib's backends: {', '.join(found['joblib_backends'])}"
    yield ""
    rows = [(one["name"], one["version"] or "", _framework(one), "") for one in found["frameworks"]]
    yield from table([("framework", "version", "", ""), *rows])


def _library(one: dict[str, Any]) -> str:
    """The library of a module, as programs import it."""
    module: str = one["module"]
    return "concurrent.futures" if module.startswith("concurrent.") else module.partition(".")[0]


def _by_library(modules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each library, and for each module that is there and not watched."""
    libraries: dict[str, list[dict[str, Any]]] = {}
    for one in modules:
        libraries.setdefault(_library(one), []).append(one)
    found = []
    for library, own in sorted(libraries.items()):
        closed = [one for one in own if one["status"] == "not watched"]
        others = [one for one in own if one not in closed]
        # Where one module of a library is watched, those that this release lacks do not matter.
        first = sorted(others, key=lambda one: one["status"] != "watched")[:1]
        found += [{**one, "module": library} for one in first]
        found += closed
    return found


def _framework(one: dict[str, Any]) -> str:
    if one["version"] is None:
        return "not installed"
    reason = too_old(one["name"], one["version"])
    return f"not watched  {reason}" if reason else "watched once a program imports it"
