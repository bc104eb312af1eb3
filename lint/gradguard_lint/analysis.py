"""One entry file: read, and run as a program where that can show anything."""

from __future__ import annotations

from collections.abc import Iterable

from gradguard_lint.domain.options import Options
from gradguard_lint.engine.relevance import Relevance
from gradguard_lint.models.rows import Row, registry
from gradguard_lint.project.modules import Modules, Reader
from gradguard_lint.reading.source import SourceError, parse

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.judgement import Raw, Stated


def analyse(
    path: str,
    data: bytes,
    codes: Iterable[str],
    options: Options,
    read: Reader,
    models: tuple[Row, ...] = (),
) -> tuple[list[Raw], dict[str, bytes | None], list[str], Stated]:
    """The findings of the program that `path` starts; what it was read with, the other files and
    the places where there was none; and the repairs that rules state.

    Raises:
        SourceError: the file is not Python.
    """
    modules = Modules(path, read)
    entry = parse(data, path, modules.name, modules.package)
    known = registry(models)
    try:
        relevance = Relevance(entry, modules, known.words)
        if not relevance.matters(loops=options.loops):
            return [], modules.used, modules.absent, []
        from gradguard_lint.engine.interpreter import interpret
        from gradguard_lint.judgement import judge
        from gradguard_lint.models.transfers.meaning import Meaning

        program = interpret(modules, Meaning(known), options, relevance)
    except RecursionError:
        raise SourceError("an expression is nested too deeply to be read") from None
    found, stated = judge(program, codes)
    return found, modules.used, modules.absent, stated
