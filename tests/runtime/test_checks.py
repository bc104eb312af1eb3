"""The checks: one file a pitfall, whose list is the folder."""

from __future__ import annotations

from children import run_python

from pytest_gradguard import pitfalls
from pytest_gradguard.runtime import CHECKS
from pytest_gradguard.runtime.kernel import checks, probes

WHAT_LISTING_IMPORTS = """
import sys

from pytest_gradguard.runtime import CHECKS; from pytest_gradguard.runtime.kernel import checks

assert "GG101" in CHECKS
print([name for name in sys.modules if name.startswith(checks.__name__ + ".")])
for code in CHECKS:
    checks.load(code)
print([name for name in ("torch", "tensorflow", "cupy", "numpy", "joblib") if name in sys.modules])
"""


def test_each_file_holds_the_check_that_it_is_named_after() -> None:
    for code in CHECKS:
        module = checks.load(code)
        assert code == module.CODE
        assert pitfalls.get(code).runtime is not None
        if code not in ("GG104", "GG115"):  # a watch or a check that the program asks for
            assert module.Evidence.__module__ == module.__name__
            assert module.Evidence.code == code


def test_probes_are_named_after_their_check() -> None:
    for code in CHECKS:
        for probe in getattr(checks.load(code), "PROBES", ()):
            assert probe.name.partition("_")[0] == code.lower()
            assert probes._probe(probe.name) is probe


def test_listing_the_checks_imports_none_and_none_imports_a_framework(tmp_path) -> None:
    done = run_python("-c", WHAT_LISTING_IMPORTS, folder=tmp_path)
    assert done.stdout.splitlines() == ["[]", "[]"], done.stderr
