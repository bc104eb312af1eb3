"""Jupyter notebooks: places by cell, what is no Python in them, and what cannot be read."""

from __future__ import annotations

import json
import tokenize

import nbformat
import pytest

from gradguard_lint.reading.notebooks import read_notebook

SETUP = "import torch\nfrom joblib import Parallel, delayed"
WORK = 'def work(k):\n    return torch.ones(3, device="cuda").sum().item() * k'
CALL = "results = Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))"


def notebook(*cells: str | tuple[str, str], language: str | None = "python") -> str:
    """A notebook with code cells; a pair is the kind of another cell, and its text."""
    make = {"markdown": nbformat.v4.new_markdown_cell, "raw": nbformat.v4.new_raw_cell}
    made = nbformat.v4.new_notebook()
    made.cells = [
        nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else make[cell[0]](cell[1])
        for cell in cells
    ]
    if language is not None:
        made.metadata["kernelspec"] = {"language": language, "name": "k", "display_name": "k"}
    nbformat.validate(made)
    return nbformat.writes(made)


def places(project, *args: str) -> list[tuple[str, int, int, int]]:
    found = project.lint(*args, json_output=True).json["findings"]
    return [
        (one["code"], where["cell"], where["line"], where["column"])
        for one in found
        for where in [one["location"]]
    ]


@pytest.fixture
def book(project):
    project.write("book.ipynb", notebook(("markdown", "# Title"), SETUP, WORK, CALL))
    return project


def test_a_place_is_that_of_the_cell(book):
    (finding,) = book.lint(json_output=True).json["findings"]
    where = finding["location"]
    place = [where[part] for part in ("path", "cell", "line", "column", "end_line", "function")]
    assert place == ["book.ipynb", 2, 2, 12, 2, "work"]
    step = finding["trace"][0]
    assert (step["path"], step["cell"], step["line"]) == ("book.ipynb", 3, 1)
    assert finding["details"]["handed_out_at"]["cell"] == 3
    assert "execution_count" not in where


def test_cells_count_as_jupyter_counts_them_and_its_other_number_is_said(project):
    whole = json.loads(
        notebook(SETUP, "\n", ("raw", "x"), "# only this", ("markdown", "a"), WORK, CALL)
    )
    for cell, count in zip(whole["cells"], (1, None, None, 2, None, 7, 4), strict=True):
        if count is not None:
            cell["execution_count"] = count
    project.write("book.ipynb", json.dumps(whole))
    (finding,) = project.lint(json_output=True).json["findings"]
    assert (finding["location"]["cell"], finding["location"]["execution_count"]) == (3, 7)
    assert "--> book.ipynb:cell 3:2:12 (In [7]) in work" in project.lint().out
    whole["cells"][5]["execution_count"] = 3
    project.write("book.ipynb", json.dumps(whole))
    assert "--> book.ipynb:cell 3:2:12 in work" in project.lint().out


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        (["%matplotlib inline", *["x = 1"] * 100], 1),
        (["%time x = 1"] * 100, 100),
        (["x = (1,", *["     2,"] * 100, "     3)", "!ls", "y = '"], 103),
        ([*["def work():", "    !ls", "    x = 1"] * 30, "x ="], 120),
    ],
)
def test_lines_of_a_long_cell_are_looked_at_about_once(cell, lines, monkeypatch):
    seen = []
    tokens = tokenize.generate_tokens

    def counted(readline):
        return tokens(lambda: seen.append(readline()) or seen[-1])

    monkeypatch.setattr(tokenize, "generate_tokens", counted)
    (found,) = read_notebook(notebook("\n".join(cell)).encode()).cells
    assert len(found.text.splitlines()) == len(cell)
    assert 0 < sum(map(bool, seen)) <= 6 * lines


def test_text_shows_the_line_of_the_cell(book):
    text = book.lint("book.ipynb").out
    assert "--> book.ipynb:cell 2:2:12 in work" in text
    assert '2 |     return torch.ones(3, device="cuda")' in text
    assert "- book.ipynb:cell 3:1: `work` runs" in text


def test_standard_input_and_the_cache_give_the_same(book):
    found = places(book)
    assert found == places(book)  # from the cache
    data = (book.root / "book.ipynb").read_bytes()
    name = ("-", "--stdin-filename", "book.ipynb", "--no-cache")
    assert json.loads(book.lint(*name, "--output-format", "json", stdin=data).out)["findings"]
    assert "--> book.ipynb:cell 2:2:12" in book.lint(*name, stdin=data).out


def test_notebooks_are_found_in_folders_but_for_checkpoints(book):
    book.write("deep/er/other.ipynb", notebook(SETUP, WORK, CALL))
    book.write(".ipynb_checkpoints/book-checkpoint.ipynb", notebook(SETUP, WORK, CALL))
    paths = [path for _, path, _ in book.codes()]
    assert paths == ["book.ipynb", "deep/er/other.ipynb"]
    assert book.codes("--exclude", "*.ipynb") == []


def test_notebooks_read_the_modules_beside_them(project):
    project.write("helpers.py", f"{SETUP}\n\n\n{WORK}\n")
    code = f"from joblib import Parallel, delayed\nfrom helpers import work\n{CALL}"
    project.write("book.ipynb", notebook(code))
    ((code, path, line),) = project.codes("book.ipynb")
    assert (code, path, line) == ("GG201", "helpers.py", 6)


@pytest.mark.parametrize("comment", ["# noqa: GG201", "# gradguard: ignore[GG201] tried", "# noqa"])
def test_comments_silence(project, comment):
    project.write("book.ipynb", notebook(SETUP, f"{WORK}  {comment}", CALL))
    assert project.codes() == []


def test_a_comment_in_any_cell_skips_the_notebook(project):
    project.write("book.ipynb", notebook(SETUP, WORK, CALL, "# gradguard: skip-file"))
    assert project.codes() == []


def test_a_comment_that_silences_nothing_is_said_with_its_cell(project):
    project.write("book.ipynb", notebook("x = 1", "y = 2\nz = 3  # gradguard: ignore[GG999]"))
    (line,) = project.lint().err.splitlines()
    assert line.startswith("book.ipynb:cell 2:2: warning:")


MAGICS = {
    "line magics": "%matplotlib inline\n%load_ext autoreload",
    "shell": "!pip install torch\n!ls",
    "shell over lines": "!pip install \\\n    torch \\\n  joblib\nx = 1",
    "help": "torch?\ntorch.nn??\n?torch\n%pinfo torch",
    "assigned": "files = !ls\na, b = %who_ls\nfiles.count",
    "in a block": "if True:\n    !ls\nelse:\n    %pwd",
    "short": "!w\nx?",
    "timed": "%time y = [1]\n%timeit -n 3 sum(y)",
    "awaited": "import asyncio\nawait asyncio.sleep(0)\nasync with x: pass",
    "another language": "%%bash\nfor x in 'a; do",
    "a page": "%%html\n<b>'</b>",
    "another language below a comment": "# CI\n\n%%shell\nfor x in 'a; do",
    "Python below a comment": "# slow\n%%time\ny = [1]",
    "indented as a whole": "\n    def f(x):\n        return x\n    f(1)",
    "no magic": "x = (1\n  % 2)\ny = '''\n%time\n!ls\n'''\n!ls",
    "automagic": "\n  pip install -q torch joblib\n",
    "automagic of one word": "ls -la",
    "Windows": "%pwd\r\nx = 1\r\n",
}


@pytest.mark.parametrize("cell", MAGICS.values(), ids=list(MAGICS))
def test_what_is_no_python_is_blanked_at_equal_length(project, cell):
    project.write("book.ipynb", notebook(SETUP, cell, f"%%time\n{WORK}", CALL))
    ran = project.lint(json_output=True)
    assert ran.err == ""
    assert places(project) == [("GG201", 3, 3, 12)]
    read = read_notebook((project.root / "book.ipynb").read_bytes())
    source = read.source.decode().split("\n")
    stored = "\n".join(one.text for one in read.cells).split("\n")
    assert [len(line) for line in source] == [*map(len, stored), 0]


def test_a_statement_after_time_is_read(project):
    project.write("book.ipynb", notebook(SETUP, WORK, f"%time {CALL}"))
    assert places(project) == [("GG201", 2, 2, 12)]


def test_a_statement_after_time_is_read_without_its_percent_sign(project):
    project.write("book.ipynb", notebook(SETUP, WORK, f"time {CALL}"))
    assert places(project) == [("GG201", 2, 2, 12)]


@pytest.mark.parametrize(
    "cell", ["apt install x", "pip install x\nx = 1", "# tools\npip install x"]
)
def test_what_ipython_does_not_take_for_a_magic_is_broken(project, cell):
    project.write("book.ipynb", notebook(SETUP, cell, WORK, CALL))
    ran = project.lint("--no-cache")
    assert (ran.status, "syntax error" in ran.err) == (2, True)


def test_names_of_earlier_cells_are_known_and_strings_are_not_cut(project):
    cells = ('text = """\n%time\n"""\n!ls', SETUP, "x = torch.ones(3, requires_grad=True)")
    call = "out = Parallel(n_jobs=2)(delayed(torch.sum)(x) for _ in range(2))"
    project.write("book.ipynb", notebook(*cells, call, "sum(out).backward()"))
    assert [place[:2] for place in places(project)] == [("GG101", 4), ("GG102", 4), ("GG103", 5)]


def test_a_broken_cell_is_an_error_and_the_others_are_checked(project):
    project.write("book.ipynb", notebook(SETUP, "x = 1\ndef f(:", WORK, CALL))
    ran = project.lint("--no-cache")
    assert ran.status == 2
    assert ran.err.startswith("book.ipynb:cell 2:2: error: syntax error")
    assert "--> book.ipynb:cell 3:2:12" in ran.out
    (error,) = project.lint(json_output=True).json["errors"]
    assert (error["path"], error["cell"], error["line"]) == ("book.ipynb", 2, 2)


def test_a_function_that_is_not_followed_to_its_end_is_said_by_cell(project):
    functions = [f"x = {k}\n\n\ndef f{k}():\n    return f{k + 1}()" for k in range(16)]
    project.write("book.ipynb", notebook(SETUP, *functions, WORK, CALL, "f0()"))
    _, cut = project.lint(json_output=True).json["cut"]
    assert (cut["path"], cut["cell"], cut["line"], cut["function"]) == ("book.ipynb", 16, 4, "f14")


@pytest.mark.parametrize("language", ["R", "julia"])
def test_other_kernels_are_no_python(project, language):
    project.write("book.ipynb", notebook("x <- 1 !", language=language))
    ran = project.lint()
    assert (ran.status, ran.err) == (0, "")


def test_without_a_kernel_it_is_python(project):
    project.write("book.ipynb", notebook(SETUP, WORK, CALL, language=None))
    assert places(project) == [("GG201", 2, 2, 12)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not a notebook: it is not JSON"),
        (b"{\n  'a'", "2: error: is not a notebook: it is not JSON"),
        (b"\xff\xfe\x00", "is not a notebook: it is not UTF-8"),
        (b"[1]", "is not a notebook of format 4"),
        (b'{"worksheets": [], "nbformat": 3}', "is not a notebook of format 4"),
        (b"[" * 100_000, "is not a notebook"),
    ],
)
def test_what_is_no_notebook_is_one_clear_line(project, data, said):
    project.write("book.ipynb", data)
    project.write("train.py", f"{SETUP}\n\n\n{WORK}\n\n\n{CALL}\n")
    ran = project.lint()
    (line,) = ran.err.splitlines()
    assert (ran.status, said in line, line.startswith("book.ipynb:")) == (2, True, True)
    assert "--> train.py:6:12" in ran.out


@pytest.mark.parametrize("cells", [(), ("",), (("markdown", "# Only words"),)])
def test_notebooks_without_code_are_clean(project, cells):
    project.write("book.ipynb", notebook(*cells))
    ran = project.lint()
    assert (ran.status, ran.err) == (0, "")


def test_odd_cells_are_passed_over(project):
    whole = json.loads(notebook(SETUP, WORK, CALL))
    whole["cells"].insert(0, "no cell")
    whole["cells"].insert(0, {"cell_type": "code"})
    project.write("book.ipynb", json.dumps(whole))
    assert places(project) == [("GG201", 2, 2, 12)]


@pytest.mark.parametrize("name", ["concise", "github", "sarif", "gitlab", "junit"])
def test_each_format_names_the_cell(book, name):
    text = book.lint("--output-format", name).out
    assert {"sarif": "Cell 2, line 2"}.get(name, "book.ipynb:cell 2:2:12") in text


def test_junit_names_the_cell_of_each_test(book):
    text = book.lint("--output-format", "junit").out
    assert 'name="GG201 cuda-init-in-worker at cell 2, line 2"' in text


LOSES = """\
import torch
from joblib import Parallel, delayed
w = torch.ones(3, requires_grad=True)"""
MODE = """\
with torch.no_grad():
    Parallel(2, prefer="threads")(delayed(fwd)(x) for x in torch.ones(4, 3))"""
STOPS = """\
parts = Parallel(n_jobs=2)(delayed(lambda x: (w * x).sum())(x) for x in torch.ones(4, 3))

sum(parts).backward()"""


@pytest.mark.parametrize("name", ["json", "text", "concise", "sarif", "gitlab", "junit"])
def test_what_is_left_after_repairs_is_where_it_is_in_the_cells_now(project, name):
    source = notebook(LOSES, "def fwd(x):\n    return w * x", MODE, STOPS)
    for number, text in enumerate((source, source.replace(r"def fwd", r"%%time\ndef fwd"))):
        path = project.write(f"{number}/book.ipynb", text)
        left = project.lint("--fix", "--output-format", name, f"{number}/book.ipynb").out
        assert path.read_text() != text
        fresh = project.lint("--output-format", name, "--no-cache", f"{number}/book.ipynb").out
        assert left[: left.rfind("book.ipynb")] == fresh[: fresh.rfind("book.ipynb")]
        if name == "concise":
            assert "book.ipynb:cell 4:3:1: error[GG103]" in left


PROCESSES = """\
import torch
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from beside import send
"""


@pytest.mark.parametrize(("call", "runs"), [
    ("for k in range(2): get_context('fork').Process(target=work, args=(k,)).start()", True),
    ("for k in range(2): get_context('spawn').Process(target=work, args=(k,)).start()", False),
    ("get_context('forkserver').Pool(2).map(work, range(3))", False),
    ("ProcessPoolExecutor(2, mp_context=get_context('spawn')).submit(work, 3)", False),
    ("for k in (1, 2): get_context('spawn').Process(target=Work().run, args=(k,)).start()", False),
    ("for k in range(2): get_context('spawn').Process(target=send, args=(k,)).start()", True),
    ("import multiprocess\nmultiprocess.get_context('spawn').Pool(2).map(work, range(3))", True),
    ("from joblib import Parallel, delayed\nParallel(2)(delayed(work)(k) for k in range(3))", True),
])  # fmt: skip
def test_a_fresh_process_that_finds_functions_by_name_runs_none_of_a_cell(project, call, runs):
    project.write("beside.py", WORK.replace("def work", "import torch\n\n\ndef send"))
    methods = "class Work:\n    def run(self, k):\n        return work(k)"
    project.write("book.ipynb", notebook(PROCESSES, WORK, methods, call))
    assert [code for code, *_ in project.codes("book.ipynb")] == ["GG201"] * runs
    project.write("program.py", "\n\n".join((PROCESSES, WORK, methods, call)))
    assert [code for code, *_ in project.codes("program.py")] == ["GG201"]


def test_forked_workers_of_a_cell_are_not_to_be_fresh_ones(project):
    setup = "import torch\nfrom multiprocessing import Pool\nx = torch.ones(3, device='cuda')"
    call = "if __name__ == '__main__':\n    with Pool(2) as pool:\n        pool.map(work, range(3))"
    project.write("program.py", "\n\n".join((setup, WORK, call)))
    (found,) = project.lint("--select", "GG203", "program.py", json_output=True).json["findings"]
    assert found["edits"] is not None
    project.write("book.ipynb", notebook(setup, WORK, call))
    (found,) = project.lint("--select", "GG203", "book.ipynb", json_output=True).json["findings"]
    assert found["edits"] is None
