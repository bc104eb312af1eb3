"""Every rule's bad examples are reported at the marked lines; its good examples are silent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradguard_lint.analysis import analyse
from gradguard_lint.domain.options import Options
from gradguard_lint.engine.relevance import Relevance
from gradguard_lint.project.reader import Reader
from gradguard_lint.rules import codes, rules

RULES = {rule.CODE: rule for rule in rules(codes())}
BAD = [(code, name) for code, rule in RULES.items() for name in rule.BAD]
GOOD = [(code, name) for code, rule in RULES.items() for name in rule.GOOD]


def write(folder: Path, source: str) -> dict[str, str]:
    """Write the files of an example; their texts by name, the program first."""
    parts = re.split(r"^# file: (\S+)\n", source, flags=re.MULTILINE)
    files = {"program.py": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    for name, text in files.items():
        (folder / name).write_text(text)
    return files


def found(folder: Path) -> set[tuple[str, int, str]]:
    path = folder / "program.py"
    seen = analyse(str(path), path.read_bytes(), codes(), Options(loops=True), Reader())
    return {(Path(item["path"]).name, item["line"], item["code"]) for item in seen.result.findings}


def marked(files: dict[str, str]) -> set[tuple[str, int, str]]:
    return {
        (name, number, code)
        for name, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"GG\d{3}", line.partition("  # ")[2])
    }


@pytest.mark.parametrize(("code", "name"), BAD)
def test_a_bad_example_is_reported_where_it_is_marked(code, name, tmp_path):
    files = write(tmp_path, RULES[code].BAD[name])
    expected = marked(files)
    assert any(item[2] == code for item in expected), "the example marks no line"
    assert found(tmp_path) == expected


@pytest.mark.parametrize(("code", "name"), GOOD)
def test_a_good_example_is_silent(code, name, tmp_path):
    files = write(tmp_path, RULES[code].GOOD[name])
    assert found(tmp_path) == marked(files) == set()


def test_what_no_name_leads_to_has_no_finding(monkeypatch, tmp_path):
    """Running every function of the examples finds what running the relevant ones does."""
    sources = [RULES[code].BAD[name] for code, name in BAD]
    sources += [RULES[code].GOOD[name] for code, name in GOOD]
    folders = [tmp_path / str(number) for number in range(len(sources))]
    for folder, source in zip(folders, sources, strict=True):
        folder.mkdir()
        write(folder, source)
    relevant = [found(folder) for folder in folders]
    monkeypatch.setattr(Relevance, "matters", lambda self, loops: True)
    monkeypatch.setattr(Relevance, "definitions", lambda self, loops: set(self.seen.definitions))
    assert [found(folder) for folder in folders] == relevant


def test_every_rule_has_examples_of_both_kinds():
    for code, rule in RULES.items():
        assert rule.BAD, code
        assert rule.GOOD, code
        assert rule.__doc__, code


def test_the_rules_of_the_contract_are_there():
    contract = (
        *(101, 102, 103, 105, 106, 108, 109, 111, 112, 113),
        *(201, 202, 203, 204, 205, 206),
        *(301, 302, 303, 304, 305, 306, 307, 308),
        *(401, 402, 403, 404, 405, 501, 502, 503),
    )
    assert {f"GG{number}" for number in contract} <= set(codes())
