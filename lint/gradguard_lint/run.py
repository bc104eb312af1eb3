"""One run of the linter: from paths to findings."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, reduce

from gradguard_lint.garbage import postponed
from gradguard_lint.outcome import Outcome
from gradguard_lint.project.configuration import Configurations
from gradguard_lint.project.contents import Unusable, read
from gradguard_lint.project.files import ALWAYS_OUT, UNCHANGED, Trouble, absolute, discover
from gradguard_lint.project.patterns import relative
from gradguard_lint.project.prefilter import Prefilter
from pytest_gradguard.records import fields, replace

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

    from gradguard_lint.batch import Raw, Result, Sought
    from gradguard_lint.models.rows import Row

CHECKED_IN_FULL = 64 * 1024
"""The total size up to which files without a pitfall are checked for syntax, smallest first; files
given by the user always are."""

LOOPS_AT_NO_COST = 64 * 1024
"""The total size up to which files that may only have info findings are read anyway."""

_AST_ONLY = 0x400
_NAMING_CODES = re.compile(rb"#\s*gradguard:\s*ignore|(?i:#\s*noqa:.*gg[0-9])")


@fields
class Request:
    """What to check, and how.

    Attributes:
        paths: files and folders.
        configurations: the configurations of files.
        force_exclude: whether `exclude` applies to `paths`, too.
        jobs: the number of processes; 0: automatic.
        cache: whether to use the cache.
        stdin: the name and source of standard input.
        info: whether info findings are shown, and so searched for at any cost; None: by
            configuration.
        target_version: the Python version of the programs; None: by configuration.
        start_method: the start method of processes; None: that of the Python version.
        unsaved: unsaved files of an editor, by absolute path; JSON for notebooks.
        over: files as repairs change them, by absolute path; Python for notebooks.
        progress: called with the number of analysed programs, and of all.
    """

    paths: tuple[str, ...]
    configurations: Configurations
    force_exclude: bool = False
    jobs: int = 0
    cache: bool = True
    stdin: tuple[str, bytes] | None = None
    info: bool | None = None
    target_version: tuple[int, int] | None = None
    start_method: str | None = None
    unsaved: Mapping[str, bytes] = UNCHANGED
    over: Mapping[str, bytes] = UNCHANGED
    progress: Callable[[int, int], None] | None = None


def chosen(request: Request) -> Outcome:
    """The files of `request`, as the `contents` of an outcome, without checking them."""
    outcome = Outcome()
    contents = _contents(request, outcome)
    outcome.contents = {absolute(path): data for path, data in contents.items()}
    outcome.configurations = list(dict.fromkeys(map(request.configurations.of, contents)))
    outcome.errors += request.configurations.errors
    return outcome


def run(request: Request) -> Outcome:
    """Check everything in `request`. Findings don't depend on order, cache or jobs."""
    with postponed():
        return _run(request)


def _run(request: Request) -> Outcome:
    outcome = Outcome()
    contents = _contents(request, outcome)
    outcome.read_notebooks(contents, request.over)
    for path in contents if request.over else ():
        contents[path] = request.over.get(absolute(path), contents[path])
    outcome.contents = {absolute(path): data for path, data in contents.items()}
    _check_comments(contents, outcome)
    around = _around(request, contents)
    everything = contents | around
    prefilter = _prefilter(request, everything)
    entries = _entries(request, contents, prefilter, outcome)
    outcome.read = len(entries)
    entries |= {path: "workers" for path in around if prefilter.keeps(path)}
    outcome.configurations = list(dict.fromkeys(map(request.configurations.of, contents)))
    results = _results(request, entries, prefilter, everything, outcome)
    outcome.findings = _unused_suppressions(contents, entries, results, prefilter)
    checked = contents.keys() | outcome.contents.keys()
    equal: dict[tuple[str, str, int, int], list[Raw]] = {}

    def reported(raw: Raw) -> bool:
        return is_reported(raw["path"])

    def is_reported(path: str) -> bool:
        return path in checked or not _left_out(path, request.configurations)

    # Of programs around, only findings in checked files matter.
    for path in around.keys() & results.keys():
        result = results[path]
        named = [raw for raw in result.findings if raw["path"] in checked]
        results[path] = replace(result, findings=named, error=None, cut=[])
    for path, result in results.items():
        if result.error is not None:
            outcome.errors.append(Trouble(path, *result.error))
        if result.findings:
            from gradguard_lint.raw import place_of, wanted

            for raw in wanted(result.findings, reported):
                equal.setdefault(place_of(raw), []).append(raw)
    outcome.cut = _cut(results, is_reported)
    outcome.findings = sorted(
        (*map(_merged, equal.values()), *outcome.findings),
        key=lambda raw: (raw["path"], raw["line"], raw["column"], raw["code"]),
    )
    _downgrade_removed_names(outcome.findings)
    troubles = {*outcome.errors, *request.configurations.errors}
    outcome.errors = sorted(troubles, key=lambda it: (it.path, it.line, it.message))
    outcome.warnings = list(dict.fromkeys(outcome.warnings))
    unread = {error.path for error in outcome.errors} - outcome.notebooks.keys()
    outcome.files = len(contents.keys() - unread)
    if any(raw["edits"] and raw["edits"]["alone"] for raw in outcome.findings):
        from gradguard_lint.fixes.alone import judged

        outcome.findings = judged(outcome.findings, outcome.contents)
    return outcome


def _unused_suppressions(
    contents: dict[str, bytes],
    entries: dict[str, Sought],
    results: dict[str, Result],
    prefilter: Prefilter,
) -> list[Raw]:
    """Comments that silence nothing in any program of the run."""
    with_comments = [
        path
        for path, data in contents.items()
        if (b"gradguard" in data or b"noqa" in data.lower()) and _NAMING_CODES.search(data)
    ]
    if not with_comments:
        return []
    from gradguard_lint.batch import LOOPS
    from gradguard_lint.unused_suppressions import Silenced

    silenced = Silenced(results)
    found: list[Raw] = []
    for path in with_comments:
        no_loops = entries.get(path, "workers") == "workers" and prefilter.loops(path)
        found += silenced.unused(path, contents[path], LOOPS if no_loops else frozenset())
    return found


def _cut(results: dict[str, Result], is_reported: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Functions that budgets cut off, each once."""
    found = {
        (path, line, name or "", why)
        for result in results.values()
        for path, line, name, why in result.cut
        if is_reported(path)
    }
    once: dict[tuple[str, int, str], str] = {}
    for path, line, name, why in sorted(found):
        once.setdefault((path, line, name), why)
    return [
        {"path": path, "line": line, "function": name or None, "reason": why}
        for (path, line, name), why in once.items()
    ]


def _downgrade_removed_names(findings: list[Raw]) -> None:
    """Downgrade errors about removed names if a project requires older versions.

    Requirements are read in each run, as the cache doesn't depend on them.
    """
    findings = [raw for raw in findings if raw["gone"] is not None]
    if findings:
        from gradguard_lint.project.requirements import Requirements

        requirements = Requirements()
        for raw in findings:
            gone = raw["gone"]
            asked = requirements.below(raw["path"], gone["packages"], gone["version"])
            if asked is not None:
                raw["severity"] = "info"
                asks = f"this project asks for `{asked.text}` ({asked.file})"
                raw["message"] = f"{gone['said']}; {asks}."
                raw["edits"] = None  # it needs newer versions


def _left_out(path: str, configurations: Configurations) -> bool:
    """Whether `path`, reached from another file, is excluded."""
    return configurations.of(path).broken or configurations.excludes(path)


def _results(
    request: Request,
    entries: dict[str, Sought],
    prefilter: Prefilter,
    contents: dict[str, bytes],
    outcome: Outcome,
) -> dict[str, Result]:
    """The results of all entries, and of programs that call functions with findings."""
    if not entries:
        return {}
    from gradguard_lint.batch import Batch, Task, own_rows
    from gradguard_lint.project.target import Targets
    from gradguard_lint.reading.text import NOTEBOOK
    from pytest_gradguard.platforms import HERE

    targets = Targets()
    stub_rows = cache(_stub_rows)  # each folder is read once

    def task_of(path: str) -> Task:
        settings = request.configurations.of(path).settings
        start = request.start_method or settings.start_method
        target = request.target_version or settings.target_version or targets.of(path)
        start = start or HERE.start_method(target)
        rows = own_rows(settings.delayed, settings.parallel, settings.models)
        rows += tuple(row for folder in settings.stub_folders() for row in stub_rows(folder))
        sought = entries.get(path, "workers")
        return Task(path, contents[path], settings.root, rows, start, sought)

    modules = {path: it for path, it in request.unsaved.items() if not path.endswith(NOTEBOOK)}
    batch = Batch(
        jobs=request.jobs,
        cache=request.cache,
        over={**modules, **request.over},
        read=prefilter.read,
        progress=request.progress,
    )
    tasks = [task_of(path) for path in entries]
    results = batch.run(tasks)
    if len(contents) > 1 and any(result.findings for result in results.values()):
        from gradguard_lint.callers import analyse_with_callers, drop_test_findings

        analyse_with_callers(batch, tasks, results, prefilter.importers, task_of)
        drop_test_findings(tasks, results)
    outcome.warnings += batch.warnings
    return results


def _merged(equal: list[Raw]) -> Raw:
    """The merged finding of `equal` ones."""
    if len(equal) == 1:
        return equal[0]
    from gradguard_lint.raw import merged

    return reduce(merged, sorted(equal, key=_depth))


def _depth(raw: Raw) -> tuple[int, str]:
    """The order of equal findings from several programs: shortest chain first."""
    return (len(raw["trace"]), repr(raw["trace"]))


# -- files -----------------------------------------------------------------------------------------


def _contents(request: Request, outcome: Outcome) -> dict[str, bytes]:
    """The files to check, by path as given or found."""
    configurations = request.configurations
    contents: dict[str, bytes] = {}
    paths = _wanted(request.paths, request, outcome)
    for path in discover(paths, configurations.excludes, outcome.errors, outcome.warnings):
        if configurations.of(path).broken:
            continue
        try:
            unsaved = request.unsaved.get(absolute(path))
            contents[path] = read(path) if unsaved is None else unsaved
        except Unusable as error:
            outcome.errors.append(Trouble(path, 1, str(error), whole=True))
    new = {path: data for path, data in request.unsaved.items() if not os.path.lexists(path)}
    new |= {} if request.stdin is None else dict([request.stdin])
    wanted = (name for name in _wanted(new, request, outcome) if not configurations.of(name).broken)
    contents |= {name: new[name] for name in wanted}
    return contents


def _around(request: Request, contents: dict[str, bytes]) -> dict[str, bytes]:
    """If only files are given: project files that import one of them."""
    if request.stdin is not None or not all(map(os.path.isfile, request.paths)):
        return {}
    from gradguard_lint.project.around import importers

    return importers(contents, request.configurations.excludes)


def _wanted(paths: Iterable[str], request: Request, outcome: Outcome) -> list[str]:
    """The given `paths` without excluded ones."""
    if not request.force_exclude:
        return list(paths)
    wanted = []
    for path in paths:
        absolute = os.path.abspath(path)
        root = request.configurations.of(absolute).settings.root
        parts = relative(absolute, root).split("/")
        if request.configurations.excludes(absolute) or not ALWAYS_OUT.isdisjoint(parts):
            outcome.left_out += 1
        else:
            wanted.append(path)
    return wanted


def _check_comments(contents: dict[str, bytes], outcome: Outcome) -> None:
    """Warn about comments that silence nothing."""
    for path, data in contents.items():
        if b"gradguard:" in data:
            from gradguard_lint.reading.suppress import unusable
            from pytest_gradguard.pitfalls import codes

            outcome.warnings += [Trouble(path, line, why) for line, why in unusable(data, codes())]


def _stub_rows(folder: str) -> tuple[Row, ...]:
    """The rows for the user's stubs in `folder`."""
    from gradguard_lint.models.own_stubs import rows_of_folder

    return rows_of_folder(folder)


def _prefilter(request: Request, contents: dict[str, bytes]) -> Prefilter:
    """The byte search, with the user's names of starters."""
    settings = {path: request.configurations.of(path).settings for path in contents}
    wrappers = {name for of_file in settings.values() for name in of_file.delayed}
    wrappers |= {name for of_file in settings.values() for name in of_file.parallel}
    wrappers |= {
        name
        for of_file in settings.values()
        for model in of_file.models
        for name in dict(model)["name"]
    }
    ranked: set[str] = set()
    for folder in {folder for of_file in settings.values() for folder in of_file.stub_folders()}:
        for row in _stub_rows(folder):
            (wrappers if row.does == "pool" else ranked).add(row.names)
    return Prefilter(contents, _tops(request), wrappers, ranked)


def _tops(request: Request) -> tuple[str, ...]:
    """The folders given by the user, and the current one."""
    named = (absolute(path) for path in request.paths if os.path.isdir(path))
    return (*named, os.getcwd())


def _entries(
    request: Request, contents: dict[str, bytes], prefilter: Prefilter, outcome: Outcome
) -> dict[str, Sought]:
    """The files that pass the byte search, with what to search for; the others are checked as far
    as that is cheap."""
    loops = {path for path in contents if prefilter.loops(path)}
    cheap = sum(len(contents[path]) for path in loops) <= LOOPS_AT_NO_COST
    entries: dict[str, Sought] = {}
    others: list[str] = []
    for path in sorted(contents):
        info = path in loops and (cheap or _info(request, path))
        outcome.not_for_info += path in loops and not info
        if prefilter.keeps(path):
            entries[path] = "all" if info else "workers"
        elif info:
            entries[path] = "loops"
        else:
            others.append(path)
    in_full = _read_in_full(request, others, contents)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [_unreadable(contents[path], path, in_full=path in in_full) for path in others]
    outcome.errors += filter(None, found)
    return entries


def _read_in_full(request: Request, paths: list[str], contents: dict[str, bytes]) -> set[str]:
    """The `paths` whose syntax is checked: those given by the user, and cheap others."""
    named = {*request.paths} if request.stdin is None else {request.stdin[0]}
    found = named.intersection(paths)
    left = CHECKED_IN_FULL
    for path in sorted(set(paths) - found, key=lambda path: (len(contents[path]), path)):
        left -= len(contents[path])
        if left < 0:
            break
        found.add(path)
    return found


def _info(request: Request, path: str) -> bool:
    if request.info is not None:
        return request.info
    return request.configurations.of(path).settings.min_severity == "info"


def _unreadable(data: bytes, path: str, *, in_full: bool) -> Trouble | None:
    """The error of a file that isn't valid Python, if that is cheap to find."""
    if b"\0" in data or not data.isascii() or b"coding" in data[:200] or in_full:
        from gradguard_lint.reading.text import SourceError, check

        try:
            check(data)
        except SourceError as error:
            return Trouble(path, error.line, str(error))
    if not in_full or not data:
        return None
    from gradguard_lint.reading.text import compile_flags

    try:
        flags = _AST_ONLY | compile_flags(path)
        compile(data, path, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, RecursionError, MemoryError, ValueError, LookupError):
        from gradguard_lint.reading.source import SourceError, tree_of

        try:
            tree_of(data, path)
        except SourceError as error:
            return Trouble(path, error.line, str(error))
    return None
