"""TensorFlow's GPUs under the guard, where there is none.

Real: TensorFlow's errors where the program insists on a GPU, its silence where it does not, and the
pickling of tensors, variables and models. A stand-in: what TensorFlow puts on a second logical CPU
of its own is taken to lie on a GPU (`gpu_programs/tensorflow_cases.py`).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from gpu_children import PROGRAMS, codes, said_by

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("tensorflow", "joblib"))), reason="no TensorFlow or joblib"
)
CASES = PROGRAMS / "tensorflow_cases.py"


@pytest.fixture(scope="module")
def without() -> Any:
    """Findings where there is no GPU."""
    return said_by(CASES, "none")


@pytest.fixture(scope="module")
def stood_in() -> Any:
    """Findings where a second CPU is taken for a GPU."""
    return said_by(CASES, "stand-in")


@pytest.mark.parametrize("case", ["strictly", "in a function"])
def test_to_insist_on_a_gpu_is_an_attempt(without: Any, case: str) -> None:
    (finding,) = without[case]["findings"]
    assert (finding["code"], finding["details"]["framework"]) == ("GG201", "tensorflow")
    assert finding["details"]["failed"].startswith("InvalidArgumentError: ")
    assert Path(finding["trace"][0]["path"]).name == CASES.name
    # The error arrives with what TensorFlow gives it, and nothing else.
    assert without[case]["raised"] == without["another error"]["raised"]


@pytest.mark.parametrize("case", ["cpu", "softly", "another error", "asked", "tensors"])
def test_what_runs_on_the_cpu_is_no_attempt(without: Any, case: str) -> None:
    assert without[case]["findings"] == []


def test_workers_that_start_tensorflow_with_a_gpu(stood_in: Any) -> None:
    (finding,) = stood_in["workers start"]["findings"]
    assert (finding["code"], finding["details"]["failed"]) == ("GG201", None)
    assert finding["details"]["workers"] in (1, 2)
    assert codes(stood_in["visible devices"]["findings"]) == {"GG201", "GG204"}


@pytest.mark.parametrize(
    ("case", "framework", "kind"),
    [
        ("tensor", "tensorflow", "EagerTensor"),
        ("variable", "tensorflow", "Variable"),
        ("model", "keras", "Variable"),
    ],
)
def test_what_lies_on_a_gpu_and_crosses(
    stood_in: Any, case: str, framework: str, kind: str
) -> None:
    (finding,) = (one for one in stood_in[case]["findings"] if one["severity"] != "info")
    details = finding["details"]
    assert (finding["code"], finding["count"]) == ("GG202", 2)
    assert (details["framework"], details["type"]) == (framework, kind)
    assert details["object"].startswith(("args[0]", "args[1]"))
    assert details["device"].endswith("CPU:1")


def test_what_comes_back_from_a_gpu(stood_in: Any) -> None:
    findings = stood_in["workers give"]["findings"]
    assert codes(findings) == {"GG201", "GG202"}
    (crossed,) = (finding for finding in findings if finding["code"] == "GG202")
    assert crossed["details"]["object"] == "result['made']"


@pytest.mark.parametrize("case", ["on the cpu", "numpy", "threads", "fork before"])
def test_what_is_on_the_cpu_or_stays_here(stood_in: Any, case: str) -> None:
    assert stood_in[case]["findings"] == []


def test_a_fork_after_tensorflow_took_the_gpu(stood_in: Any) -> None:
    (finding,) = stood_in["fork after"]["findings"]
    assert (finding["code"], finding["details"]["framework"]) == ("GG203", "tensorflow")
