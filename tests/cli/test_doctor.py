"""`gradguard doctor`: what is watched in an environment, what is not, and why."""

from __future__ import annotations

import json
import multiprocessing
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from pytest_gradguard import __version__, cli
from pytest_gradguard.integrations import Integration, Patch
from pytest_gradguard.platforms import HERE
from pytest_gradguard.runtime.kernel import oldest, registry


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library with a pool, whose integration is the only one."""
    module = ModuleType("poolish")
    module.__spec__ = ModuleSpec("poolish", None)
    module.__version__ = "9.9"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "poolish", module)
    integration = Integration(
        name="poolish",
        patches={"poolish": lambda module: [Patch(module.Pool, "give", lambda original: original)]},
    )
    known = registry.Registered(integration)
    monkeypatch.setattr(registry, "registered", {"poolish": known})
    monkeypatch.setattr("pytest_gradguard.runtime.integrations.load", lambda: None)
    return module


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = cli.main(["doctor", *arguments])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, captured.out


def test_what_is_installed_is_patched_as_the_guard_does(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = doctor(capsys, "--output-format", "json")
    found = json.loads(text)
    assert status == 0
    assert found["tool"] == {"name": "gradguard", "version": __version__}
    assert found["disabled"] is False
    assert found["start_method"] == multiprocessing.get_context().get_start_method()
    assert found["missing_here"] == HERE.missing()
    modules = {one["module"]: (one["status"], one["reason"]) for one in found["integrations"]}
    for module in ("joblib.parallel", "multiprocessing.pool", "concurrent.futures.process"):
        assert modules[module] == ("watched", None)
    versions = {one["module"]: one["version"] for one in found["integrations"]}
    assert versions["joblib.parallel"] == metadata.version("joblib")
    assert versions["threading"] is None
    assert {"loky", "multiprocessing", "threading"} <= set(found["joblib_backends"])
    assert {"torch", "tensorflow"} <= {one["name"] for one in found["frameworks"]}


def test_text_has_a_line_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = doctor(capsys)
    rows = [line.split() for line in text.split("\n\n")[1].splitlines()[1:]]
    assert ["joblib", metadata.version("joblib"), "watched"] in rows
    assert ["concurrent.futures", "watched"] in rows
    assert not [row for row in rows if "joblib.parallel" in row or "_private" in row[0]]
    _, text = doctor(capsys, "-v")
    assert "\njoblib.parallel " in text


def test_a_module_that_is_not_watched_has_a_line_of_its_own(
    library: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library.Pool = type("Pool", (), {"give": None})  # type: ignore[attr-defined]
    part = ModuleType("poolish.part")
    monkeypatch.setitem(sys.modules, "poolish.part", part)
    integration = registry.registered["poolish"].integration
    (patches,) = integration.patches.values()
    both = Integration(name="poolish", patches={"poolish": patches, "poolish.part": patches})
    monkeypatch.setattr(registry, "registered", {"poolish": registry.Registered(both)})
    status, text = doctor(capsys)
    assert status == 1
    named = [line.split(maxsplit=3)[0] for line in text.splitlines() if "poolish" in line]
    assert named == ["poolish", "poolish.part"]
    assert "joblib's backends" not in text  # it isn't among the integrations here


def test_an_unknown_layout_is_named_and_fails(
    library: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = doctor(capsys)
    assert status == 1
    line = next(line for line in text.splitlines() if line.startswith("poolish"))
    assert line.split(maxsplit=1)[1] == (
        "not watched  poolish 9.9 is not known to gradguard (module 'poolish' has no attribute "
        "'Pool')"
    )


def test_a_release_that_is_too_old_is_named_and_fails(
    library: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library.Pool = type("Pool", (), {"give": None})  # type: ignore[attr-defined]
    status, text = doctor(capsys)
    assert status == 0, text
    monkeypatch.setitem(oldest.OLDEST, "poolish", "9.10")  # type: ignore[arg-type]
    known = registry.Registered(registry.registered["poolish"].integration)
    monkeypatch.setattr(registry, "registered", {"poolish": known})
    status, text = doctor(capsys)
    assert status == 1
    assert "poolish 9.9 is not known to gradguard (9.10 is the oldest that it watches)" in text


def test_a_framework_that_is_too_old_is_named_and_fails(
    library: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pytest_gradguard.runtime.kernel.frameworks.package_names", lambda: ["joblib"]
    )
    library.Pool = type("Pool", (), {"give": None})  # type: ignore[attr-defined]
    assert doctor(capsys)[0] == 0
    monkeypatch.setitem(oldest.OLDEST, "joblib", "99.0")  # type: ignore[arg-type]
    status, text = doctor(capsys)
    assert status == 1
    line = next(line for line in text.splitlines() if line.startswith("joblib "))
    assert line.split("  ")[-2:] == ["not watched", "99.0 is the oldest that it watches"]


def test_where_the_environment_turns_it_off(
    library: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADGUARD_DISABLE", "1")
    status, text = doctor(capsys)
    assert status == 0
    assert "disabled: GRADGUARD_DISABLE is set, so nothing is watched" in text.splitlines()
    assert "GRADGUARD_DISABLE is set" in next(
        line for line in text.splitlines() if line.startswith("poolish")
    )
