"""The analysis of one entry file: parsing, and running it if it may have a pitfall."""

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
"""A function not analysed completely: path, line, name and reason."""


@fields
class Result:
    """The result of analysing one file.

    Attributes:
        findings: the findings in the program that it starts.
        calls: functions of other files that it calls: path, line, and the line of its own calling
            function (0: module level).
        cut: functions that a budget cut off: path, line, name and reason.
        silenced: comments that silence a finding: path, line and code.
        error: the line and reason if it couldn't be analysed.
    """

    findings: list[Raw] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    cut: list[Cut] = field(default_factory=list)
    silenced: list[tuple[str, int, str]] = field(default_factory=list)
    error: tuple[int, str] | None = None


@fields
class Analysed:
    """A result with its dependencies.

    Attributes:
        result: the result.
        used: the other files that ran with it, with their bytes.
        asked: the files whose names were resolved, with their bytes.
        absent: the paths where no module was found.
        stated: the repairs that rules propose.
        summaries: summaries of `asked` files, if the result is cached.
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
    """Run the program that `path` starts; if it is wanted as a `whole`, even if nothing in it
    matters.

    Raises:
        SourceError: the file isn't Python, or nests too deeply.
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
        raise  # a fault of the linter
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
