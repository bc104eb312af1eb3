"""What peers send is data: JSON, of exactly the type that is expected."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pytest_gradguard.findings import Finding, Location, Severity, TraceStep
from pytest_gradguard.runtime.kernel import plain_data, probes
from pytest_gradguard.runtime.kernel.evidence import Object
from pytest_gradguard.runtime.kernel.tasks import Task
from pytest_gradguard.runtime.pitfalls.random.gg305 import Drawn
from pytest_gradguard.runtime.pitfalls.tapes.notes import Behind, Flow, Made, Note

pytest.importorskip("torch")

TASK = Task("work", "/a.py", 3)
OBJECT = Object("args[0]", TASK, {"shape": [2, None], "dtype": "float32"}, None, True)
FINDING = Finding(
    *("GG101", "grad-tensor-to-worker", Severity.WARNING, "runtime", "message"),
    Location("/a.py", 3),
    trace=(TraceStep("/a.py", 4, "step", lane="worker"),),
    details={"framework": "torch", "parameters": (1, "a", None)},
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (OBJECT, Object),
        ([FINDING], list[Finding]),
        ([Drawn(1, "Generator", b"\0\xff", b"", True, TASK)], list[Drawn]),
        ({7: Flow.SOME, ("w", (2, None), "float32"): Flow.ZERO}, Behind),
        (Note([7, ("w", (2,), "float32")], OBJECT, [Made(None, {}, OBJECT)]), Note),
        ({1: (), 2: (1.5, 2.0)}, dict[int, tuple[float, ...]]),
        (frozenset({1}), frozenset[int]),
        (("x", None, (1, ("y",))), tuple[Any, ...]),
    ],
)
def test_a_value_comes_back_as_it_was(value: object, kind: Any) -> None:
    back = plain_data.loads(plain_data.dumps(value), kind)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"\x80\x04N.", Any),
        (None, Any),
        ("", Any),
        ("[" * 100_000, Any),
        ('{"a": 1}', Any),
        ("true", int),
        ("1", bool),
        ("1.0", int),
        ("null", str),
        ('"a"', list[str]),
        ("[1]", tuple[int, int]),
        ("[[1]]", dict[int, int]),
        ('["work", null]', Task),
        ('["work", 1, null]', Task),
        ("7", Flow),
        ('"other"', Literal["runtime", "lint"]),
        ('"?"', bytes),
        ("[]", int | str),
        (plain_data.dumps(OBJECT._replace(description={"not one": 1})), Object),  # type: ignore
        (plain_data.dumps(OBJECT._replace(description={"shape": "2"})), Object),  # type: ignore
    ],
)
def test_anything_else_is_refused(text: object, kind: Any) -> None:
    if type(text) is str and not text.startswith(f"[{plain_data.VERSION},"):
        text = f"[{plain_data.VERSION},{text}]"
    with pytest.raises(ValueError):
        plain_data.loads(text, kind)


@pytest.mark.parametrize("text", ["7", "null", "[7]", "[0,7]", "[2,7]", '["1",7]', "[1,7,7]", "{}"])
def test_a_text_of_another_version_is_refused(text: str) -> None:
    assert plain_data.loads("[1,7]", int) == 7
    with pytest.raises(ValueError):
        plain_data.loads(text, int)


def test_a_huge_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = plain_data.dumps("x" * 100)
    assert plain_data.loads(text, str) == "x" * 100
    monkeypatch.setattr(plain_data, "LONGEST", 100)
    with pytest.raises(ValueError):
        plain_data.loads(text, str)


@pytest.mark.parametrize("name", [probe.name for probe in probes._all()])
def test_the_notes_of_each_probe_have_a_closed_type(name: str) -> None:
    if not hasattr(probes._module(name), "on_note"):
        with pytest.raises(ValueError, match="no probe"):
            probes.note_type(name)
        return
    pending, known = [probes.note_type(name)], set()
    assert pending[0] is not Any
    while pending:
        kind = pending.pop()
        if kind in known or kind is ...:
            continue
        known.add(kind)
        try:
            plain_data._read(object(), kind)  # a TypeError: there is no such type in plain data
        except ValueError:
            pass
        pending += plain_data.get_args(kind) if plain_data.get_origin(kind) is not Literal else ()
        pending += plain_data._fields(kind) or ()
        if plain_data.is_typeddict(kind):
            pending += plain_data._hints(kind).values()


@pytest.mark.parametrize("name", ["", "os", "gg106 ", "gg999", "simulated"])
def test_a_note_of_no_probe_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        probes.read([(name, "null")])
