"""One entry file: read, and run as a program where that can show anything."""

from __future__ import annotations

from collections.abc import Iterable

from gradguard_lint.domain.options import Options
from gradguard_lint.engine.relevance import Relevance
from gradguard_lint.models.rows import Row, registry
from gradguard_lint.project.files import absolute
from gradguard_lint.project.modules import Modules
from gradguard_lint.project.reader import Reader
from gradguard_lint.reading.source import SourceError, nests_deeply, parse
from gradguard_lint.reading.suppress import skips_file
from gradguard_lint.reading.text import TOO_DEEP
from pytest_gradguard.records import field, fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.judgement import Stated
    from gradguard_lint.raw import Raw


Cut = tuple[str, int, "str | None", str]
"""A function that was not followed to its end: its path, line and name, and the reason."""


@fields
class Result:
    """What the analysis of one file gave.

    Attributes:
        findings: what the rules say of the program that it starts.
        calls: the functions of other files that it calls, by path and line, each with the line of
            its own function by which it comes there; 0 is the file's own code.
        cut: the functions that a budget cut off: path, line, name and reason.
        silenced: where comments silence a finding: the path, the comment's line and the code.
        error: the line and the reason why it could not be analysed.
    """

    findings: list[Raw] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    cut: list[Cut] = field(default_factory=list)
    silenced: list[tuple[str, int, str]] = field(default_factory=list)
    error: tuple[int, str] | None = None


@fields
class Analysed:
    """The same, with what it hangs on.

    Attributes:
        result: what the analysis gave.
        used: the other files that were run with it, and what they hold.
        asked: those that were asked for their names.
        absent: the places where there was none.
        stated: the repairs that rules state.
        summaries: of those that were asked for their names, where a cache keeps the result.
    """

    result: Result = field(default_factory=Result)
    used: dict[str, bytes | None] = field(default_factory=dict)
    asked: dict[str, bytes | None] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    stated: Stated = field(default_factory=list)
    summaries: dict[str, str] = field(default_factory=dict)


def analyse(
    path: str,
    data: bytes,
    codes: Iterable[str],
    options: Options,
    read: Reader,
    models: tuple[Row, ...] = (),
    *,
    whole: bool = False,
) -> Analysed:
    """Run the program that `path` starts: as a `whole`, though nothing in it may matter.

    Raises:
        SourceError: the file is not Python, or nests too deeply.
    """
    modules = Modules(path, read)
    entry = parse(data, path, modules.name, modules.package)
    known = registry(models)
    try:
        relevance = Relevance(entry, modules, known.words)
        if not whole and not relevance.matters(loops=options.loops):
            return Analysed(Result(), modules.used, modules.asked, modules.absent)
        from gradguard_lint.engine.interpreter import interpret
        from gradguard_lint.judgement import judge
        from gradguard_lint.models.transfers.meaning import Meaning

        program = interpret(modules, Meaning(known), options, relevance)
        found, stated, silenced = judge(program, codes)
    except RecursionError:
        if any(nests_deeply(it.tree) for it in (entry, *modules.loaded())):
            raise SourceError(TOO_DEEP) from None
        raise  # a fault of the linter's own
    calls = [(absolute(where), line, own) for (where, line), own in program.calls_elsewhere.items()]
    cut = []
    if program.unfinished:
        skipped = {it.path for it in (entry, *modules.loaded()) if skips_file(it.data)}
        cut = [
            (absolute(where), line, name, why)
            for (where, line, name), why in program.unfinished.items()
            if where not in skipped
        ]
    needed = (modules.used, modules.asked, modules.absent)
    return Analysed(Result(found, calls, cut, sorted(silenced)), *needed, stated)
