"""The catalogue holds what the contract names, in complete texts."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gradguard.pitfalls import catalogue, codes, expand, files, find, get

CONTRACT = """
GG101 grad-tensor-to-worker warning lint runtime
GG102 graph-returned-from-worker warning lint runtime
GG103 backward-through-worker-result error lint runtime
GG104 missing-gradient error - runtime
GG105 tape-around-workers error lint runtime
GG106 gradients-left-in-worker error lint runtime
GG107 parameters-to-worker info - runtime
GG108 graph-through-memory-cache warning lint runtime
GG109 stale-module-global warning lint runtime
GG110 optimizer-state-lost warning - runtime
GG111 worker-buffers-lost warning lint runtime
GG112 optimizer-left-behind error lint runtime
GG113 hooks-lost warning lint runtime
GG114 trained-copy-dropped warning lint runtime
GG115 wrong-gradient error - runtime
GG201 cuda-init-in-worker warning lint runtime
GG202 cuda-tensor-to-worker warning lint runtime
GG203 cuda-after-fork error lint runtime
GG204 visible-devices-in-worker warning lint runtime
GG205 gpu-estimator-n-jobs warning lint -
GG206 dataloader-workers-in-worker error lint runtime
GG301 grad-mode-not-propagated warning lint runtime
GG302 shared-model-thread-race warning lint -
GG303 fork-after-threads-deadlock error lint runtime
GG304 identical-random-streams warning lint runtime
GG305 generator-object-to-tasks warning lint runtime
GG306 memmap-written-in-worker error lint runtime
GG307 seed-stays-in-parent info lint runtime
GG308 threads-share-generator warning lint runtime
GG401 removed-keras-wrapper error lint -
GG402 dask-array-to-predict warning lint -
GG403 map-fn-not-parallel warning lint -
GG404 per-example-gradient-loop info lint -
GG405 dask-backend-by-argument error lint -
GG501 collective-cuts-graph error lint runtime
GG502 ddp-bypassed error lint runtime
GG503 sampler-epoch-not-set warning lint runtime
GG504 ddp-unused-parameters error - runtime
GG505 ranks-diverge error - runtime
GG506 shared-module-in-ranks error lint runtime
GG901 unused-suppression info lint -
"""

ROOT = Path(__file__).parents[2]

every_entry = pytest.mark.parametrize("code", codes())


def test_codes_names_severities_and_sides_are_those_of_the_contract():
    table = [
        f"{p.code} {p.name} {p.severity.label} {'lint' if p.lint else '-'} "
        f"{'runtime' if p.runtime else '-'}"
        for p in catalogue()
    ]
    assert table == CONTRACT.split("\n")[1:-1], "CONTRACT (above) and the entries differ"


def test_names_are_unique():
    names = [pitfall.name for pitfall in catalogue()]
    assert len(set(names)) == len(names)


@every_entry
def test_an_entry_names_its_module(code):
    pitfall = get(code)
    assert pitfall.code == code
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", pitfall.name)


@every_entry
def test_texts_are_complete_sentences(code):
    pitfall = get(code)
    assert 10 < len(pitfall.title) <= 80
    assert not pitfall.title.endswith(".")
    for field in ("happens", "why", "fix", "lint", "runtime", "reach"):
        text = getattr(pitfall, field)
        if not text:
            continue
        assert text.endswith((".", ".)")), field
        assert re.match(r"[A-Z`]|joblib|scikit-learn", text), field
        assert text == " ".join(text.split()), field
        assert text.count("`") % 2 == 0, field
        assert 20 < len(text) < 600, field


@every_entry
def test_the_first_sentence_of_the_fix_stands_alone(code):
    assert get(code).fix.startswith(get(code).advice)
    for advice in (get(code).advice, *get(code).cases.values()):
        assert advice.endswith(".")
        assert 20 < len(advice) < 200
        assert advice.count("(") == advice.count(")")


@every_entry
@pytest.mark.parametrize("kind", ["bad", "good"])
def test_a_program_is_short_and_compiles(code, kind):
    program = getattr(get(code), kind)
    lines = program.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100
    assert program.endswith("\n")
    for name, text in files(program).items():
        compile(text, name, "exec")
    assert list(files(program))[-1] == "main.py"


def test_programs_are_in_plain_style(tmp_path):
    """As ruff formats it, with nothing unused."""
    for pitfall in catalogue():
        for kind in ("bad", "good"):
            for name, text in files(getattr(pitfall, kind)).items():
                folder = tmp_path / f"{pitfall.code}_{kind}"
                folder.mkdir(exist_ok=True)
                (folder / name).write_text(text)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["format", "--check"], ["check", "--select", "E,F,W,I"]):
        done = subprocess.run(
            [*ruff, *command, "--isolated", "--no-cache", "--line-length", "100", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_files_takes_a_program_apart():
    program = "# one.py\nx = 1\n\n\n# main.py\nimport one\n# two.py is a remark\n"
    assert files(program) == {
        "one.py": "x = 1\n",
        "main.py": "import one\n# two.py is a remark\n",
    }
    assert files("x = 1\n") == {"main.py": "x = 1\n"}


def test_get_knows_whole_codes_only():
    with pytest.raises(KeyError):
        get("GG1")


@pytest.mark.parametrize("text", ["gg101", "GG101", "Grad-Tensor-To-Worker"])
def test_find_takes_codes_and_names(text):
    assert find(text) is get("GG101")


def test_find_says_what_is_allowed():
    with pytest.raises(ValueError, match=r"'GG1001', did you mean 'GG101'\? .*name"):
        find("GG1001")
    with pytest.raises(ValueError, match="'ddp-bypased', did you mean 'ddp-bypassed'"):
        find("ddp-bypased")
    with pytest.raises(ValueError, match=r"'gg40' stands for several .*GG401, GG402, GG403"):
        find("gg40")


def test_expand_takes_codes_and_prefixes():
    assert expand(["GG4", "GG101"]) == {"GG101", *(code for code in codes() if code[:3] == "GG4")}
    assert {"GG401", "GG405"} < expand(["GG4"])
    assert expand(["Ddp-Bypassed", "GG405"]) == {"GG502", "GG405"}
    with pytest.raises(ValueError, match="'GG7'"):
        expand(["GG1", "GG7"])


def test_the_pages_in_docs_are_up_to_date():
    folder = ROOT / "docs" / "pitfalls"
    script = runpy.run_path(str(ROOT / "docs" / "make_pitfalls.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == script["with_table"](readme), "run: python docs/make_pitfalls.py"
    made = script["pages"]()
    assert set(made) == {"index.md", *(f"{code.lower()}.md" for code in codes())}
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert written == made, "run: python docs/make_pitfalls.py"


@every_entry
def test_every_entry_says_when_to_silence_it_and_where_to_read_on(code):
    entry = get(code)
    assert entry.silence.endswith(".")
    assert entry.links
    assert all(link.url.startswith("https://") for link in entry.links)
    assert len(set(entry.links)) == len(entry.links)
