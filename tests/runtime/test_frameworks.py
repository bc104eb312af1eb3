"""Arrays of another package's, made known by `register_framework`; and those of JAX."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import Any

import pytest
from children import run_python

from pytest_gradguard import Finding, Framework, GradGuardWarning, guard, register_framework
from pytest_gradguard.runtime.kernel import frameworks, oldest

pytest.importorskip("joblib")
import home_made_arrays as arrays
from home_made_arrays import Array, Weight
from joblib import Parallel, delayed


def found(function: Any, *arguments: Any) -> tuple[list[Any], list[Finding]]:
    with guard("record") as report:
        out = Parallel(2)(delayed(function)(argument) for argument in arguments)
    return out, report.findings


def test_a_framework_that_is_too_old_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "__version__", "1.9", raising=False)
    assert codes(found(arrays.total, Array([1.0], wants=True))[1]) == ["GG101"]
    monkeypatch.setitem(oldest.OLDEST, "home_made_arrays", "1.10")  # type: ignore[arg-type]
    monkeypatch.delitem(frameworks._reductions, "home_made")
    with pytest.warns(GradGuardWarning, match=r"1.9 is not .* \(1.10 is the oldest .*\)"):
        assert found(arrays.total, Array([1.0], wants=True))[1] == []


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def test_an_array_that_wants_a_gradient() -> None:
    out, findings = found(arrays.total, Array([1.0, 2.0], wants=True), Array([3.0]))
    assert out == [3.0, 3.0]
    (finding,) = findings
    assert finding.code == "GG101"
    assert finding.count == 1
    about = {"framework": "home_made", "type": "Array", "shape": [2], "device": "cpu"}
    assert about.items() <= finding.details.items()
    assert finding.details["object"] == "args[0]"
    assert "requires grad and is pickled for loky workers" in finding.message


def test_parameters_plain_arrays_and_history() -> None:
    assert codes(found(arrays.total, Weight([1.0], wants=True))[1]) == ["GG107"]
    assert codes(found(arrays.total, Weight([1.0]), Array([1.0]))[1]) == []
    (finding,) = found(arrays.total, Array([1.0], wants=True).times(2.0))[1]
    assert finding.details["history"] == "Times"


def test_a_result_with_history_and_results_on_a_gpu() -> None:
    out, findings = found(arrays.double, Array([1.0], wants=True))
    assert out[0].values == [2.0]
    assert out[0].made_by is None
    assert codes(findings) == ["GG101", "GG102"]
    assert findings[1].details["history"] == "Times"
    out, findings = found(arrays.on_gpu, [1.0])
    assert out[0].device == "cuda:1"
    (finding,) = findings
    assert (finding.code, finding.details["direction"]) == ("GG202", "result")


def test_an_array_on_a_gpu() -> None:
    (finding,) = found(arrays.total, Array([1.0], "cuda:0"), Array([1.0]))[1]
    assert (finding.code, finding.details["device"]) == ("GG202", "cuda:0")


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (arrays.total, Array([1.0], wants=True)),
        (arrays.double, Array([1.0], wants=True)),
        (arrays.total, Weight([1.0], wants=True)),
        (arrays.total, Array([1.0], "cuda:0")),
        (arrays.on_gpu, [1.0]),
    ],
)
def test_the_advice_asks_nothing_of_torch(function: Any, argument: Any) -> None:
    for finding in found(function, argument)[1]:
        assert not re.search(r"`|torch|tensor|joblib", finding.fix or "`"), finding.fix


def test_after_the_guard_its_class_is_as_it_was() -> None:
    found(arrays.total, Array([1.0]))
    assert "__reduce_ex__" not in vars(Array)


def test_bad_input_is_refused_in_one_line() -> None:
    class Nameless(Framework):
        module = "x"

    class Words(Framework):
        name = "words"
        module = "x"
        types = "Array"

    class Torch(Framework):
        name = "torch"
        module = "x"

    with pytest.raises(TypeError, match="takes a Framework, not 'torch'"):
        register_framework("torch")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the name of a framework must be a name, not ''"):
        register_framework(Nameless())
    with pytest.raises(TypeError, match="types of framework 'words' must be a list of names"):
        register_framework(Words())
    with pytest.raises(ValueError, match="gradguard already has a framework named 'torch'"):
        register_framework(Torch())
    assert frameworks.named("torch").title == "PyTorch"


def test_another_one_of_the_same_name_takes_its_place() -> None:
    class Indifferent(arrays.HomeMade):
        def requires_grad(self, array: Any) -> bool:
            return False

    before = frameworks.named("home_made")
    with guard("record"):
        Parallel(2)(delayed(arrays.total)(array) for array in [Array([1.0])])
        register_framework(Indifferent())
        assert "__reduce_ex__" not in vars(Array)
    try:
        assert codes(found(arrays.total, Array([1.0], wants=True))[1]) == []
    finally:
        register_framework(before)
    assert codes(found(arrays.total, Array([1.0], wants=True))[1]) == ["GG101"]


def test_the_folder_is_the_list_of_frameworks() -> None:
    assert {"torch", "tensorflow", "keras", "cupy", "jax"} == set(frameworks._ours)
    assert {"torch", "tensorflow", "keras", "cupy", "jax", "jaxlib"} <= set(
        frameworks.package_names()
    )


# -- JAX -----------------------------------------------------------------------------------------


def jax_child(program: str) -> list[str]:
    pytest.importorskip("jax")
    done = run_python("-W", "ignore::RuntimeWarning", "-c", textwrap.dedent(program))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_jax_in_a_forked_worker_is_an_error_and_no_hang() -> None:
    lines = jax_child(
        """
        import jax.numpy as jnp
        from joblib import Parallel, delayed
        from pytest_gradguard import guard
        def total(size):
            return float(jnp.ones(size).sum())
        def plain(size):
            return sum(range(size))
        total(3)
        with guard("record") as report:
            print(Parallel(2, backend="multiprocessing")(delayed(plain)(i) for i in (2, 3)))
        print([finding.code for finding in report.findings])
        with guard("record") as report:
            try:
                Parallel(2, backend="multiprocessing")(delayed(total)(i) for i in (2, 3))
            except Exception as error:
                print(type(error).__name__)
        (finding,) = report.findings
        print(finding.code, finding.severity.name, finding.details["framework"], finding.message)
        """
    )
    assert lines[:3] == ["[1, 3]", "[]", "ForkDeadlockError"]
    assert lines[3].startswith("GG303 ERROR jax JAX's compute threads were started in this process")


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_jax_that_the_function_of_a_forked_process_waits_for_itself() -> None:
    lines = jax_child(
        """
        import multiprocessing
        import jax.numpy as jnp
        from pytest_gradguard import guard
        def multiplies():
            (jnp.ones((500, 500)) @ jnp.ones((500, 500))).block_until_ready()
        multiplies()
        with guard("record") as report:
            process = multiprocessing.get_context("fork").Process(target=multiplies, daemon=True)
            process.start()
            process.join(60)
        print(process.exitcode)
        print([finding.code for finding in report.findings])
        """
    )
    assert lines == ["1", "['GG303']"]


def test_arrays_of_jax_on_a_gpu_and_on_the_cpu() -> None:
    lines = jax_child(
        """
        import jax.numpy as jnp
        from joblib import Parallel, delayed
        from pytest_gradguard import guard
        from pytest_gradguard.runtime.frameworks.jax import Jax
        def codes():
            with guard("record") as report:
                Parallel(2)(delayed(len)(jnp.ones(3)) for _ in range(2))
            return [(found.code, found.details["device"]) for found in report.findings]
        print(codes())
        Jax.device = lambda self, array: "cuda:0"
        print(codes())
        """
    )
    assert lines == ["[]", "[('GG202', 'cuda:0')]"]
