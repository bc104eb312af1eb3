"""What an editor offers to do about findings: single repairs, all of them, and silence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from editor_client import SERVER, WORKER, Editor, in_an_editor
from lsprotocol import types

from pytest_gradguard.cli import main

START = types.Range(types.Position(0, 0), types.Position(0, 0))
REPAIRABLE = (
    "import joblib\n\n\n"
    'print("🐍", joblib.Parallel(2, backend="dask")(joblib.delayed(abs)(i) for i in [1]))\n'
)
IGNORE = "GG201: ignore on this line"
FIX_ALL = "gradguard: fix all that have a safe fix"


def everything(folder: Path) -> list[str]:
    """The codes that the command finds in a folder, at any severity."""
    command = [*SERVER[:-1], "lint", "--min-severity", "info", "--output-format", "concise"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return [line.split("[")[1][:5] for line in done.stdout.splitlines() if "[GG" in line]


def test_repairs_are_code_actions(tmp_path):
    (tmp_path / "train.py").write_text(REPAIRABLE, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", REPAIRABLE)
        await one.until(lambda codes: codes == {"train.py": ["GG405"]})
        (found,) = one.published["train.py"]
        action, ignore = (await one.actions("train.py", found.range, ["quickfix"])).values()
        assert action.kind == types.CodeActionKind.QuickFix
        assert (action.is_preferred, ignore.is_preferred) == (True, False)
        assert ignore.title == "GG405: ignore on this line"
        one.make(action.edit)
        await one.until(lambda codes: codes == {})
        assert not await one.actions("train.py", found.range)

    in_an_editor(tmp_path, use)


COMMENTS = {
    "": "  # noqa: GG201",
    "   ": "  # noqa: GG201",
    "  # GPU 0": "  # GPU 0  # noqa: GG201",
    "  # noqa: E501": "  # noqa: E501, GG201",
    "  # NOQA:E501,F401 long": "  # NOQA:E501,F401, GG201 long",
    "  # noqa : E501": "  # noqa : E501  # noqa: GG201",
    "  # gradguard: ignore[GG101] why": "  # gradguard: ignore[GG101, GG201] why",
    "  # gradguard: ignore[GG101": "  # gradguard: ignore[GG101  # noqa: GG201",
    "  # gradguard: ignore[ ]": "  # gradguard: ignore[ GG201]",
    "  # type: ignore  # noqa: E501": "  # type: ignore  # noqa: E501, GG201",
}
"""What stands behind a line, and behind it once its finding is ignored."""


def test_a_finding_is_ignored_in_the_comment_that_its_line_has(tmp_path):
    line = "\x0c\n" + WORKER.replace("return", "'🐍'; return")
    texts = {
        f"{n}.py": [
            line.replace("* k\n", f"* k{comment}\n").replace("\n", ("\n", "\r\n")[n % 2])
            for comment in pair
        ]
        for n, pair in enumerate(COMMENTS.items())
    }
    for name, (before, _) in texts.items():
        (tmp_path / name).write_text(before, "utf-8", newline="")

    async def use(one: Editor) -> None:
        for name, (before, _) in texts.items():
            one.open(name, before)
        await one.until(lambda codes: codes == {name: ["GG201"] for name in texts})
        for name, (_, after) in texts.items():
            (found,) = one.published[name]
            one.make((await one.actions(name, found.range))[IGNORE].edit)
            assert one.texts[name] == after
            (tmp_path / name).write_text(after, "utf-8", newline="")
        await one.until(lambda codes: codes == {})

    in_an_editor(tmp_path, use)
    unused = sum("GG101" in comment for comment in COMMENTS)  # GG101 is not found there
    assert everything(tmp_path) == ["GG901"] * unused


SPLIT = """\
import torch
from joblib import Parallel, delayed


def work(k):
    return k + (
        \\
        torch.ones(3, device="cuda")
        .sum() \\
        .item()
    )


results = Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
"""


def test_a_comment_stands_where_python_allows_one_and_is_not_unused(tmp_path):
    text = SPLIT.replace('device="cuda")', 'device="""\\\ncuda""")')
    (tmp_path / "train.py").write_text(text, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", text)
        await one.until(lambda codes: codes == {"train.py": ["GG201"]})
        (found,) = one.published["train.py"]
        one.make((await one.actions("train.py", found.range))[IGNORE].edit)
        await one.until(lambda codes: codes == {})
        (tmp_path / "train.py").write_text(one.texts["train.py"], "utf-8")

    in_an_editor(tmp_path, use)
    assert everything(tmp_path) == []


LOSS = """\
import torch

w = torch.ones(3, requires_grad=True)
parts = joblib.Parallel(2)(joblib.delayed(lambda k: (w * k).sum())(k) for k in range(3))
sum(parts).backward()
"""
"""A program with an unsafe repair."""

CODES = ["GG405", "GG405", "GG101", "GG102", "GG103"]


@pytest.mark.parametrize("resolves", [True, False])
def test_fix_all_makes_the_safe_repairs_of_a_file_as_the_command_does(
    tmp_path, monkeypatch, resolves
):
    lines = REPAIRABLE.splitlines(keepends=True)
    text = "".join((*lines, lines[-1].replace("print", "repr"), LOSS))
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text(text, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", text)
        await one.until(lambda codes: codes == dict.fromkeys(("train.py", "other.py"), CODES))
        for only in (None, ["source"], ["source.fixAll"], ["source.fixAll.gradguard"]):
            action = (await one.actions("train.py", START, only))[FIX_ALL]
            assert action.kind == "source.fixAll.gradguard"
            assert (action.edit is None) == resolves
        one.make((await one.client.code_action_resolve_async(action)).edit)
        await one.until(lambda codes: codes == {"train.py": CODES[2:], "other.py": CODES})
        assert FIX_ALL not in await one.actions("train.py", START)
        fixed.append(one.texts["train.py"])

    fixed: list[str] = []
    in_an_editor(tmp_path, use, resolves=resolves)
    monkeypatch.chdir(tmp_path)
    assert main(["lint", "--fix", "train.py"]) == 1
    assert fixed == [(tmp_path / "train.py").read_text("utf-8")]


def test_a_comment_that_silences_nothing_is_removed_not_silenced(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.gradguard]\nmin-severity = "info"\n', "utf-8")
    (tmp_path / "a.py").write_text("x = 1  # noqa: GG101\n", "utf-8")

    async def use(one: Editor) -> None:
        one.open("a.py", "x = 1  # noqa: GG101\n")
        await one.until(lambda codes: codes == {"a.py": ["GG901"]})
        found = one.published["a.py"][0].range
        (action,) = (await one.actions("a.py", found, ["quickfix"])).values()
        one.make(action.edit)
        assert one.texts["a.py"] == "x = 1\n"

    in_an_editor(tmp_path, use)


def test_other_kinds_are_not_offered(tmp_path):
    (tmp_path / "train.py").write_text(REPAIRABLE, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", REPAIRABLE)
        everywhere = types.Range(types.Position(0, 0), types.Position(9, 0))
        assert not await one.actions("train.py", everywhere, ["refactor", "source.fix"])
        assert len(await one.actions("train.py", everywhere)) == 3

    in_an_editor(tmp_path, use)


def test_actions_are_about_the_text_as_it_is_now(tmp_path):
    (tmp_path / "train.py").write_text(REPAIRABLE, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", REPAIRABLE)
        await one.until(lambda codes: codes == {"train.py": ["GG405"]})
        one.type("train.py", "x = 1\n" * 5 + REPAIRABLE)  # nobody waits until it is checked
        line = types.Range(types.Position(8, 20), types.Position(8, 20))
        repair, ignore = (await one.actions("train.py", line, ["quickfix"])).values()
        for action in (repair, ignore):
            (edits,) = action.edit.changes.values()
            assert max(edit.range.end.line for edit in edits) in (8, 9)
        one.type("train.py", "x = (\n" + one.texts["train.py"])
        broken = types.Range(types.Position(0, 0), types.Position(10, 0))
        assert not await one.actions("train.py", broken)
        assert len(one.published["train.py"]) == 1

    in_an_editor(tmp_path, use)
