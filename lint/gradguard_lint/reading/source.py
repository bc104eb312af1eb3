"""One module's source, read once: its tree, its lines, and what its suppressions say.

The tree is that of the standard `ast`, not of libcst: positions come with it, it parses
``torch/nn`` (136 files, 1.9 MB) in 0.36 s of processor time where libcst 1.9 takes 2.8 s and as
much again for positions, and it refuses an expression that is nested too deeply where libcst ends
the process. What it cannot read because it is newer than the running Python is for `newer`.
"""

from __future__ import annotations

import ast
import sys
import warnings
from functools import cached_property

from gradguard_lint.reading.text import (
    NOTEBOOK,
    TOO_DEEP,
    SourceError,
    byte_lines,
    check,
    compile_flags,
    decode,
)

__all__ = ["Module", "SourceError", "nests_deeply", "parse", "tree_of"]

_DEEP = 100
"""Code nested this deeply may be too deep to analyse; nobody writes half of this by hand."""


class Module:
    """A parsed module.

    Attributes:
        path: as it is shown.
        name: the dotted import name; a script has its file's name.
        package: the package that relative imports start from.
        tree: its syntax tree.
        data: its bytes, as they were read.
        is_stub: whether it is no module of the program, but says what one of a library does.
    """

    def __init__(
        self,
        path: str,
        name: str,
        package: str,
        tree: ast.Module,
        data: bytes,
        *,
        is_stub: bool = False,
    ) -> None:
        self.path = path
        self.name = name
        self.package = package
        self.tree = tree
        self.data = data
        self.is_stub = is_stub

    @property
    def is_notebook(self) -> bool:
        """Whether it is a notebook, which no other process can import."""
        return self.path.endswith(NOTEBOOK)

    @cached_property
    def byte_lines(self) -> list[bytes]:
        """The lines as bytes, since the tree's columns count UTF-8 bytes."""
        return byte_lines(self.data)

    @cached_property
    def comments(self) -> dict[int, bytes] | None:
        """The comments by line; None if they cannot be distinguished from strings."""
        from gradguard_lint.reading.suppress import comments_of

        return comments_of(self.byte_lines)

    @cached_property
    def text(self) -> str:
        """The text of the file, decoded."""
        return decode(self.data)

    def base_of(self, node: ast.ImportFrom) -> str:
        """The dotted name of the module that `node` imports from."""
        if node.level == 0:
            return node.module or ""
        parts = self.package.split(".") if self.package else []
        parts = parts[: len(parts) - (node.level - 1)] if node.level > 1 else parts
        return ".".join([*parts, node.module] if node.module else parts)

    def column(self, line: int, offset: int) -> int:
        """The 1-based column in characters of byte `offset` in `line`."""
        try:
            raw = self.byte_lines[line - 1]
        except IndexError:
            return offset + 1
        return len(raw[:offset].decode("utf-8", "replace")) + 1


def parse(data: bytes, path: str, name: str, package: str, *, is_stub: bool = False) -> Module:
    """The module, or stub of one, that `data` holds.

    Raises:
        SourceError: it is not Python that can be read.
    """
    check(data)
    return Module(path, name, package, tree_of(data, path), data, is_stub=is_stub)


def tree_of(data: bytes, path: str) -> ast.Module:
    """The syntax tree of `data`; what is newer than the running Python is left out of it.

    Raises:
        SourceError: it is not Python that can be read.
    """
    try:
        return _compiled(data, path)
    except SyntaxError as error:
        from gradguard_lint.reading.newer import as_newer, as_older

        older = as_older(data)
        if older is not None:
            try:
                tree = _compiled(older, path)
                as_newer(tree)
                return tree
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                pass
        version = ".".join(map(str, sys.version_info[:2]))
        kind = "" if error.msg.startswith("invalid syntax") else "syntax error: "
        reason = f"{kind}{error.msg} (parsed as Python {version})"
        raise SourceError(reason, error.lineno or 1) from None
    except (RecursionError, MemoryError):
        raise SourceError(TOO_DEEP) from None
    except (ValueError, LookupError, UnicodeError) as error:
        raise SourceError(f"cannot be decoded: {error}") from None


def nests_deeply(tree: ast.Module) -> bool:
    """Whether what follows `tree` by calls within calls may fail for its depth alone."""
    level: list[ast.AST] = [tree]
    for _ in range(_DEEP):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return bool(level)


def _compiled(data: bytes | str, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flags = ast.PyCF_ONLY_AST | compile_flags(path)
        tree: ast.Module = compile(data, path, "exec", flags, dont_inherit=True)
        return tree
