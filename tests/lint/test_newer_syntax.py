"""Files for a newer Python than the running one are read; what is no Python says who read it."""

from __future__ import annotations

import sys

import pytest

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
}


@pytest.mark.parametrize("name", NEWER)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_newer_syntax_is_read_and_every_place_stays(name, end, project):
    text = PROGRAM.format(lines=NEWER[name])
    line = text[: text.index("torch.ones")].count("\n") + 1
    project.write("program.py", text.replace("\n", end).encode())
    ran = project.lint("program.py", json_output=True)
    assert ran.err == ""
    (finding,) = ran.json["findings"]
    assert (finding["location"]["line"], finding["location"]["column"]) == (line, 12)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads it")
def test_a_true_syntax_error_beside_newer_syntax_names_the_python(project):
    project.write("program.py", PROGRAM.format(lines="type X = int\ndef f(:\n    pass"))
    ran = project.lint("program.py")
    version = ".".join(map(str, sys.version_info[:2]))
    assert ran.status == 2
    assert f"(read by Python {version})" in ran.err


def test_what_libcst_does_not_allow_is_a_syntax_error(project):
    project.write("program.py", PROGRAM.format(lines="type X = int\nx = f'a' b'c'"))
    ran = project.lint("program.py")
    assert ran.status == 2
    assert "syntax error" in ran.err


@pytest.mark.parametrize(
    "start", ["x = " + "(" * 5000, "x = " + "not " * 50_000, "elif x: y\n" * 9000]
)
def test_no_nesting_ends_the_process(start, project):
    project.write("program.py", "type X = int\n" + start)
    assert project.lint("program.py").status == 2
