"""``--fix``, ``--unsafe-fixes``, ``--diff`` and ``--add-noqa`` on real files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from gradguard_lint.fixes.session import NotWritten, write
from pytest_gradguard.cli.lint import repairs

SAFE = """\
import torch
from joblib import Parallel, delayed


def predict(net, batch):
    return net(batch)


net = torch.nn.Linear(3, 1)
outputs = Parallel(n_jobs=2)(delayed(predict)(net, torch.ones(2, 3)) for _ in range(3))
"""
FIXED = SAFE.replace("net(batch)\n", "net(batch).detach()\n")
DIFFERENCE = (
    (" ", "def predict(net, batch):"),
    ("-", "    return net(batch)"),
    ("+", "    return net(batch).detach()"),
)

UNSAFE = """\
import torch
from joblib import Parallel, delayed


def penalty(weights, k):
    return (weights * k).sum()


weights = torch.ones(3, requires_grad=True)
parts = Parallel(n_jobs=2)(delayed(penalty)(weights, k) for k in range(4))
torch.stack(parts).sum().backward()
"""


def last_lines(ran):
    return ran.out.splitlines()[-2:]


def test_only_safe_repairs_are_made_unless_asked(project):
    project.write("a.py", SAFE)
    project.write("b.py", UNSAFE)
    ran = project.lint("--fix")
    assert ran.status == 1
    assert (project.root / "a.py").read_text() == FIXED
    assert (project.root / "b.py").read_text() == UNSAFE
    assert "2 files checked: 1 finding fixed, 1 error, 2 warnings" in ran.out
    ran = project.lint("--fix", "--unsafe-fixes")
    assert (ran.status, ran.out) == (0, "2 files checked: 3 findings fixed, none left\n")
    assert 'Parallel(n_jobs=2, backend="threading")' in (project.root / "b.py").read_text()
    assert project.lint("--fix", "--unsafe-fixes").out == "2 files checked: no findings\n"


def test_the_report_shows_what_can_be_repaired_and_how(project):
    project.write("a.py", SAFE)
    project.write("b.py", UNSAFE)
    ran = project.lint()
    assert "warning[GG102] [*] graph-returned-from-worker" in ran.out
    assert "error[GG103] backward-through-worker-result" in ran.out
    assert "6 -     return net(batch)\n6 +     return net(batch).detach()\n" in ran.out
    assert ran.out.endswith("[*] 1 fixable with `--fix` (1 more with `--unsafe-fixes`).\n")
    assert "error[GG103] [*] " in project.lint("--unsafe-fixes").out
    only = project.lint("b.py").out.splitlines()[-1]
    assert only == "No safe repairs (1 fixable with `--fix --unsafe-fixes`)."


def test_no_hint_names_the_command_that_was_run(project):
    project.write("b.py", UNSAFE)
    ran = project.lint("--fix")
    assert last_lines(ran)[-1] == "No safe repairs (1 fixable with `--fix --unsafe-fixes`)."
    project.write("a.py", SAFE)
    assert last_lines(project.lint("--unsafe-fixes", "a.py"))[-1] == "[*] 1 fixable with `--fix`."
    ran = project.lint("--unsafe-fixes")
    assert last_lines(ran)[-1] == "[*] 2 fixable with `--fix --unsafe-fixes`."


@pytest.mark.parametrize("fix", [("--fix",), ("--fix", "--unsafe-fixes")])
def test_what_was_tried_in_vain_is_not_offered_again(fix, project, monkeypatch):
    project.write("a.py", SAFE)
    monkeypatch.setattr("gradguard_lint.fixes.session.Session._make", lambda *_: False)
    assert "fixable" not in project.lint(*fix).out


def test_a_file_that_holds_data_is_not_repaired_and_that_is_said(project):
    path = project.write("a.py", SAFE + f"table = [{'1, ' * 10_000}]\n")
    before = path.read_text()
    ran = project.lint("--fix")
    assert path.read_text() == before
    assert "a.py:1: warning: no repairs are looked for in this file: it has a line of" in ran.err
    project.write("a.py", SAFE + "# a comment of two lines or so\n" * 20_000)
    ran = project.lint("--diff")
    assert "no repairs are looked for in this file: it is larger than 512 KiB" in ran.err
    assert project.lint().err == ""


def test_json_holds_the_edits(project):
    project.write("a.py", SAFE)
    (finding,) = project.lint(json_output=True).json["findings"]
    assert finding["edits"] == {
        "applicability": "safe",
        "message": "return the tensor without its graph",
        "edits": [
            {
                "path": "a.py",
                "line": 6,
                "column": 22,
                "end_line": 6,
                "end_column": 22,
                "content": ".detach()",
            }
        ],
    }
    project.write("a.py", UNSAFE.replace("backward", "forward"))
    assert project.lint("--select", "GG101", json_output=True).json["findings"][0]["edits"] is None


def test_diff_changes_nothing(project):
    path = project.write("a.py", SAFE)
    before = path.stat()
    ran = project.lint("--diff")
    assert ran.status == 1
    assert ran.out.splitlines()[:2] == ["--- a.py", "+++ a.py"]
    assert "-    return net(batch)\n+    return net(batch).detach()\n" in ran.out
    assert ran.err == "Would fix 1 finding.\n"
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    applied = subprocess.run(["patch", "-p0"], cwd=project.root, input=ran.out.encode(), check=True)
    assert applied.returncode == 0
    assert path.read_text() == FIXED
    ran = project.lint("--diff")
    assert (ran.status, ran.out, ran.err) == (0, "", "")


def test_diff_says_that_there_are_repairs_that_are_not_safe(project):
    project.write("b.py", UNSAFE)
    ran = project.lint("--fix", "--diff")
    assert (ran.status, ran.out) == (0, "")
    assert ran.err == "No safe repairs (1 fixable with `--fix --unsafe-fixes`).\n"
    project.write("a.py", SAFE)
    assert project.lint("--diff").err == "Would fix 1 finding (1 more with `--unsafe-fixes`).\n"
    assert "--unsafe-fixes" not in project.lint("--diff", "--unsafe-fixes").err


def test_help_shows_that_the_reason_of_add_noqa_comes_by_an_equals_sign(project):
    text = project.lint("--help").out
    assert "--add-noqa REASON" not in text
    assert re.search(r"^  --add-noqa\[=REASON\] ", text, re.MULTILINE)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("    ", "\t").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: ("# coding: latin-1\n# caf\xe9\n" + text).encode("latin-1"),
        lambda text: text.replace("(3, 1)", "(\n  3,1 ,  # \u20ac\n\n)").encode(),
        lambda text: text.rstrip().encode(),
        lambda text: text.rstrip().encode() + b"\n\n\n   ",
        lambda text: text.replace("\n\n\ndef", "\r\n\n\x0c\ndef").encode(),
        lambda text: (
            f"# one\n{text}".replace("(net,", "(  # two\n    net,").replace("\n", "\r").encode()
        ),
        lambda text: text.replace("\n\n\ndef", "  # one\r\n\r\rdef").encode(),
    ],
    ids=[
        "CRLF",
        "tabs",
        "BOM",
        "latin-1",
        "layout",
        "no last newline",
        "blanks at the end",
        "mixed, form feed",
        "CR, comments",
        "all ends of lines",
    ],
)
def test_every_other_byte_stays(change, project):
    path = project.write("a.py", change(SAFE))
    assert project.lint("--fix", "a.py").status == 0
    expected = change(SAFE).replace(b"return net(batch)", b"return net(batch).detach()")
    assert path.read_bytes() == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_new_lines_end_as_others_do(end, project):
    before = SAFE.replace("outputs", "with torch.no_grad():\n    outputs").replace(
        "2)", '2, prefer="threads")'
    )
    path = project.write("a.py", before.replace("\n", end).encode())
    assert project.lint("--fix", "a.py").status == 0
    expected = before.replace("def predict", "@torch.no_grad()\ndef predict").replace("\n", end)
    assert path.read_bytes() == expected.encode()


def test_one_file_through_standard_input(project):
    ran = project.lint("--fix", "-", stdin=SAFE)
    assert (ran.status, ran.out) == (0, FIXED)
    assert "1 finding fixed" in ran.err
    assert project.lint("--fix", "-", stdin=FIXED).out == FIXED
    assert "+    return net(batch).detach()" in project.lint("--diff", "-", stdin=SAFE).out


def test_a_file_that_changed_meanwhile_is_not_written(project, monkeypatch):
    path = project.write("a.py", SAFE)
    other = project.write("b.py", SAFE)
    made = repairs.Repairs._again

    def changing(self, over):
        path.write_text(SAFE + "# new\n")
        return made(self, over)

    monkeypatch.setattr(repairs.Repairs, "_again", changing)
    ran = project.lint("--fix")
    assert ran.status == 2
    assert "a.py: error: not written: it has changed since it was read" in ran.err
    assert path.read_text() == SAFE + "# new\n"
    assert other.read_text() == SAFE  # all or none
    assert "2 files checked: 2 warnings; 1 error (see stderr)" in ran.out
    assert sorted(os.listdir(project.root)) == ["a.py", "b.py"] or ".gradguard" not in str(
        [name for name in os.listdir(project.root) if name.startswith(".gradguard-")]
    )


def test_what_cannot_be_written_leaves_everything(project):
    path = project.write("a.py", b"old")
    with pytest.raises(NotWritten, match="it is a folder"):
        write(
            {str(path): b"old", str(project.root): b""}, {str(path): b"new", str(project.root): b""}
        )
    assert path.read_bytes() == b"old"


def test_a_function_that_another_file_uses_is_no_safe_repair(project):
    project.write("a.py", SAFE)
    project.write("b.py", "from a import predict\n")
    ran = project.lint("a.py", json_output=True)
    edits = ran.json["findings"][0]["edits"]
    assert edits["applicability"] == "unsafe"
    assert edits["message"].endswith("; b.py may use `predict`, too")


def test_a_function_that_the_parent_calls_is_not_detached(project):
    project.write("a.py", SAFE + "predict(net, torch.ones(1, 3)).sum().backward()\n")
    assert "[*]" not in project.lint("--unsafe-fixes").out


NOQA = '''\
import torch
from joblib import Parallel, delayed


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k  # noqa: E501 long


def text(k):
    return torch.ones(k, device="cuda").sum().item(), """
    text"""


a = Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
b = Parallel(n_jobs=2)(delayed(text)(k) for k in range(3))
'''


def test_findings_are_silenced_where_they_are(project):
    path = project.write("a.py", NOQA)
    ran = project.lint("--add-noqa", "a.py")
    assert (ran.status, ran.err) == (0, "Added 2 noqa comments.\n")
    assert path.read_text() == NOQA.replace("E501 long", "E501, GG201 long").replace(
        'text"""\n', 'text"""  # noqa: GG201\n'
    )
    assert project.lint("a.py").status == 0
    text = path.read_text()
    assert project.lint("--add-noqa", "a.py").err == ""
    assert path.read_text() == text


def test_a_comment_can_tell_the_reason(project):
    path = project.write("a.py", SAFE.replace("net(batch)\n", "net(batch)  # fast\n"))
    project.lint("--add-noqa=only its value counts")
    (line,) = [line for line in path.read_text().splitlines() if "noqa" in line]
    assert line == "    return net(batch)  # fast  # noqa: GG102 only its value counts"
    assert project.lint().status == 0


def test_the_reason_stands_beside_other_codes_too(project):
    path = project.write("a.py", NOQA.replace(" * k  # noqa: E501 long", " * k  # noqa: E501"))
    project.lint("--add-noqa=one GPU each", "a.py")
    assert "* k  # noqa: E501, GG201 one GPU each\n" in path.read_text()
    path.write_text(NOQA)
    project.lint("--add-noqa=one GPU each", "a.py")
    assert "* k  # noqa: E501, GG201 long; one GPU each\n" in path.read_text()
    assert project.lint("a.py").status == 0
    for said in ("", " why"):
        path.write_text(NOQA.replace("noqa: E501 long", f"gradguard: ignore[GG101]{said}"))
        project.lint("--add-noqa=one GPU each", "a.py")
        separator = ";" if said else ""
        line = f"* k  # gradguard: ignore[GG101, GG201]{said}{separator} one GPU each\n"
        assert line in path.read_text()
        assert project.lint("a.py").status == 0


def notebook(*cells, **options):
    parts = [
        {
            "cell_type": "code",
            "execution_count": 3,
            "metadata": {"tags": ["é"]},
            "outputs": [{"name": "stdout", "output_type": "stream", "text": ["1\n"]}],
            "source": text.splitlines(keepends=True),
        }
        for text in cells
    ]
    whole = {"cells": parts, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, **options) + "\n"


@pytest.mark.parametrize("options", [{"indent": 1, "ensure_ascii": False}, {}], ids=["1", "flat"])
def test_cells_are_repaired_and_nothing_else_of_a_notebook(options, project):
    head, tail = SAFE.split("\n\n\n", 1)
    path = project.write("nb.ipynb", notebook(f"%pip install x\n{head}", tail, **options))
    assert project.lint("--fix").status == 0
    fixed = tail.replace("net(batch)\n", "net(batch).detach()\n")
    assert path.read_text() == notebook(f"%pip install x\n{head}", fixed, **options)


def test_a_notebook_through_standard_input_stays_one(project):
    head, tail = SAFE.split("\n\n\n", 1)
    fixed = notebook(head, tail.replace("net(batch)\n", "net(batch).detach()\n"))
    ran = project.lint("--fix", "--stdin-filename", "nb.ipynb", "-", stdin=notebook(head, tail))
    assert (ran.status, ran.out) == (0, fixed)
    odd = notebook(head, tail).replace(": ", ":")
    ran = project.lint("--fix", "--stdin-filename", "nb.ipynb", "-", stdin=odd)
    assert (ran.status, ran.out[: len(odd)]) == (2, odd)
    assert "error: not written: its JSON is not formatted" in ran.err


def test_the_difference_of_a_notebook_is_that_of_its_cells(project):
    head, tail = SAFE.split("\n\n\n", 1)
    book = notebook(head, f"!ls\n{tail}")
    project.write("nb.ipynb", book)
    lines = project.lint("--diff").out.splitlines()
    assert lines[:2] == ["--- nb.ipynb:cell 2", "+++ nb.ipynb:cell 2"]
    assert lines[3:7] == [" !ls", *(f"{mark}{line}" for mark, line in DIFFERENCE)]
    ran = project.lint("--diff", "--stdin-filename", "nb.ipynb", "-", stdin=book)
    assert ran.out.splitlines() == lines


def test_edits_in_a_notebook_are_counted_by_cell(project):
    head, tail = SAFE.split("\n\n\n", 1)
    project.write("nb.ipynb", notebook(head, tail))
    (finding,) = project.lint(json_output=True).json["findings"]
    (edit,) = finding["edits"]["edits"]
    assert (edit["cell"], edit["line"], edit["end_line"]) == (2, 2, 2)


def test_libcst_is_imported_only_where_it_has_something_to_do(project, worker):
    project.write("clean.py", "import torch\n")
    project.write("worker.py", worker)
    project.write("safe.py", SAFE)
    code = (
        "import sys; from pytest_gradguard.cli import main; main(['lint', '--no-cache', *{}]); "
        "print('libcst' in sys.modules)"
    )
    for names, needed in ((["clean.py", "worker.py"], False), (["safe.py"], True)):
        done = subprocess.run(
            [sys.executable, "-c", code.format(names)],
            cwd=project.root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.splitlines()[-1] == str(needed), done.stderr
