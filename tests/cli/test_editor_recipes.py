"""The configurations on the page for editors start the server as they are written."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from editor_client import SERVER, WORKER, Editor, in_an_editor

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[2] / "docs" / "editors.md").read_text("utf-8")
BLOCK = re.compile(r"^```(json|lua|toml|elisp)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {
    heading: [block[2] for block in BLOCK.finditer(section)]
    for heading, section in re.findall(
        r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
}


def vs_code(text: str) -> list[str]:
    settings = json.loads(text)
    assert settings["glspc.server.languageId"] == ["python"]
    return [settings["glspc.server.command"], *settings["glspc.server.commandArguments"]]


def neovim(text: str) -> list[str]:
    name, body = re.findall(r'vim\.lsp\.config\("(\w+)", \{\n(.*?)^\}\)', text, re.M | re.S)[0]
    tables = {
        key: re.findall(r'"(.*?)"', it) for key, it in re.findall(r"(\w+) = \{(.*?)\},", body)
    }
    assert f'vim.lsp.enable("{name}")' in text
    assert tables["filetypes"] == ["python"]
    return tables["cmd"]


def helix(text: str) -> list[str]:
    settings = tomllib.loads(text)
    ((name, server),) = settings["language-server"].items()
    (language,) = settings["language"]
    assert language["name"] == "python"
    assert name in language["language-servers"]
    return [server["command"], *server["args"]]


def zed(text: str) -> list[str]:
    settings = json.loads(text)
    ((name, server),) = settings["lsp"].items()
    assert name in settings["languages"]["Python"]["language_servers"]
    return [server["binary"]["path"], *server["binary"]["arguments"]]


def pycharm(text: str) -> list[str]:
    template = json.loads(text)
    (mapping,) = template["fileTypeMappings"]
    assert mapping == {
        "fileType": {"name": "Python", "patterns": ["*.py"]},
        "languageId": "python",
    }
    return shlex.split(template["programArgs"]["default"])


def emacs(text: str) -> list[str]:
    without_strings = re.sub(r'".*?"', "", text)
    assert without_strings.count("(") == without_strings.count(")")
    (command,) = re.findall(r'\(((?:"[^"]*"\s*){2,})\)', text)
    return re.findall(r'"(.*?)"', command)


RECIPES = {
    "VS Code": (vs_code, None),
    "Neovim": (neovim,),
    "Helix": (helix,),
    "Zed": (zed,),
    "PyCharm": (pycharm,),
    "Emacs": (emacs, emacs),
}
"""How the command is read from each block of a section; None stands for one that starts none."""


def test_each_block_has_its_test():
    counts = {heading: len(blocks) for heading, blocks in BLOCKS.items() if blocks}
    assert counts == {heading: len(readers) for heading, readers in RECIPES.items()}


@pytest.mark.parametrize(
    ("heading", "number", "reader"),
    [
        (heading, number, reader)
        for heading, readers in RECIPES.items()
        for number, reader in enumerate(readers)
        if reader is not None
    ],
)
def test_a_recipe_starts_the_server_as_it_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    heading: str,
    number: int,
    reader: Callable[[str], list[str]],
) -> None:
    command = reader(BLOCKS[heading][number])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "train.py").write_text(WORKER, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", WORKER)
        await one.until(lambda codes: codes == {"train.py": ["GG201"]})

    in_an_editor(tmp_path, use, command=command)


def test_the_problem_matcher_of_the_page_reads_concise_output(tmp_path):
    tasks = json.loads(BLOCKS["VS Code"][1])
    (task,) = tasks["tasks"]
    (tmp_path / "train.py").write_text(WORKER, "utf-8")
    command = [*SERVER[:-1], *task["command"].split()[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    pattern = task["problemMatcher"]["pattern"]
    match = re.match(pattern["regexp"], done.stdout.splitlines()[0])
    read = {name: match[group] for name, group in pattern.items() if name != "regexp"}
    assert {**read, "message": ""} == {
        "file": "train.py",
        "line": "6",
        "column": "12",
        "severity": "warning",
        "code": "GG201",
        "message": "",
    }
