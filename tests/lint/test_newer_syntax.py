"""Files for a newer Python than the running one are read; what is no Python says who read it."""

from __future__ import annotations

import ast
import sys
from importlib.metadata import version

import libcst
import pytest

from gradguard_lint.reading.source import tree_of

PROGRAM = """\
import torch
from joblib import Parallel, delayed

{lines}

def work(k):
    return torch.ones(3, device="cuda").sum().item() * k


results = Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
"""

NEWER = {
    "type alias": "type Batch = list[int] | None",
    "type alias over lines": "type Pair[T] = tuple[\n    T,\n    T,\n]",
    "type parameters": "def f[T](x: T) -> T: return x\nclass A[*Ts, **P]: pass",
    "type parameters over lines": "def f[\n    T: int,  # é\n](x: T): pass",
    "nested quotes": 'k = {"a": 1}\nprint(f"{k["a"]}", f"{f"{k}"}")',
    "a field over lines": "k = 1\nprint(f'{\n    k\n}')",
    "except star": "try:\n    pass\nexcept* ValueError:\n    pass",
    "template": "k = 1\ns = t'{k!r:>{k}} {k + 1}'",
    "raw template": "k = 1\ns = Rt'{k}\\d'",
    "template with nested quotes": 'k = {"a": 1}\ns = t"{k["a"]}"',
    "bare exceptions": "try:\n    pass\nexcept ValueError, os.error: pass\nexcept A,B,: pass",
    "bare exceptions over lines": "try:\n    pass\nexcept A \\\n  , B:\n    pass",
    "bare exceptions in a handler": (
        "try:\n    pass\nexcept A, B:\n    try:\n        pass\n    except C, D: pass"
    ),
    "bare exceptions after a star": "try:\n    pass\nexcept* ValueError, TypeError:\n    pass",
    "return in finally": "def f():\n    try:\n        pass\n    finally:\n        return 1",
}


def text_with(name: str) -> str:
    """The program with `NEWER[name]`; skips the test where this libcst is too old for it."""
    text = PROGRAM.format(lines=NEWER[name])
    needs_libcst_for(text)
    return text


def needs_libcst_for(text: str) -> None:
    try:
        libcst.parse_module(text)
    except libcst.ParserSyntaxError:
        pytest.skip(f"libcst {version('libcst')} cannot read it")


@pytest.mark.parametrize("name", NEWER)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_newer_syntax_is_read_and_every_place_stays(name, end, project):
    text = text_with(name)
    line = text[: text.index("torch.ones")].count("\n") + 1
    project.write("program.py", text.replace("\n", end).encode())
    ran = project.lint("program.py", json_output=True)
    assert ran.err == ""
    (finding,) = ran.json["findings"]
    assert (finding["location"]["line"], finding["location"]["column"]) == (line, 12)


@pytest.mark.parametrize("name", NEWER)
def test_a_finding_beside_newer_syntax_is_silenced(name, project):
    text = text_with(name)
    project.write("program.py", text)
    ran = project.lint("--add-noqa", "program.py")
    assert ran.status == 0
    written = (project.root / "program.py").read_text(encoding="utf-8")
    assert written == text.replace("* k\n", "* k  # noqa: GG201\n")


def test_exceptions_without_parentheses_are_a_tuple():
    """As the newest Python reads them."""
    source = b"try:\n    pass\nexcept A, b.C ,D:\n    x = A | D\nexcept (E, F):\n    pass\n"
    needs_libcst_for(source.decode())
    (attempt,) = tree_of(source, "a.py").body
    caught = [ast.unparse(handler.type) for handler in attempt.handlers]
    assert caught == ["(A, b.C, D)", "(E, F)"]
    (kept,) = attempt.handlers[0].body
    assert ast.unparse(kept) == "x = A | D"
    assert [name.col_offset for name in attempt.handlers[0].type.elts] == [7, 10, 15]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads it")
def test_a_true_syntax_error_beside_newer_syntax_names_the_python(project):
    project.write("program.py", PROGRAM.format(lines="type X = int\ndef f(:\n    pass"))
    ran = project.lint("program.py")
    python = ".".join(map(str, sys.version_info[:2]))
    assert ran.status == 2
    assert f"(parsed as Python {python})" in ran.err


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads it")
def test_what_libcst_does_not_allow_is_a_syntax_error(project):
    project.write("program.py", PROGRAM.format(lines="type X = int\nx = f'a' b'c'"))
    ran = project.lint("program.py")
    assert ran.status == 2
    assert "invalid syntax" in ran.err


@pytest.mark.parametrize(
    "start", ["x = " + "(" * 5000, "x = " + "not " * 50_000, "elif x: y\n" * 9000]
)
def test_no_nesting_ends_the_process(start, project):
    project.write("program.py", "type X = int\n" + start)
    assert project.lint("program.py").status == 2


LOADER = """\
from joblib import Parallel, delayed
from torch.utils.data import DataLoader


def evaluate(data):
    total = 0.0
    try:
        total = sum(batch.sum().item() for batch in DataLoader(data, num_workers=2))
    except{star} {caught}:
        total = None
    return total


print(Parallel(n_jobs=2)(delayed(evaluate)([1.0]) for k in range(2)))
"""


@pytest.mark.parametrize("star", ["", "*"])
@pytest.mark.parametrize(("caught", "codes"), [("AttributeError", []), ("KeyError", ["GG206"])])
def test_a_handler_of_groups_catches_as_another(star, caught, codes, project):
    project.write("program.py", LOADER.format(star=star, caught=caught))
    assert [code for code, _, _ in project.codes()] == codes
