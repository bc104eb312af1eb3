"""JAX's threads and forked processes."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(not find_spec("jax"), reason="JAX is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="hangs are seen on Linux"),
]


@pytest.fixture(scope="module")
def facts(facts_of: Any) -> Any:
    return facts_of("jax_fork")


def test_questions_about_devices_start_the_threads(facts: Any) -> None:
    """A query such as `jax.devices()` starts JAX's threads."""
    assert set(facts["questions_about_devices"].values()) == {"hangs"}


def test_every_array_and_every_call_starts_the_threads(facts: Any) -> None:
    """Creating an array or calling a compiled function starts JAX's threads."""
    assert set(facts["arrays_and_calls"].values()) == {"hangs"}


def test_transforms_and_types_start_no_threads(facts: Any) -> None:
    """Applying a transform such as `jax.jit`, without a call, starts no thread."""
    assert set(facts["what_computes_nothing"].values()) == {"works"}


def test_reading_a_result_in_a_forked_process_hangs(facts: Any) -> None:
    """Reading the value of an array in a process forked after that hangs."""
    found = facts["in_the_worker"]
    assert {found[name] for name in ("sum", "asarray", "stack", "draw")} == {"hangs"}


def test_work_that_reads_no_result_goes_on_in_a_forked_process(facts: Any) -> None:
    """Work in a forked process that reads no value does not hang."""
    found = facts["in_the_worker"]
    assert {found[name] for name in ("made", "numpy", "types")} == {"works"}


def test_what_the_parent_has_run_before_works_again_where_it_is_small(facts: Any) -> None:
    """In a forked process, a small computation that the parent has already run does not hang."""
    found = facts["what_has_run_before"]
    assert {found[name] for name in ("once more", "another number")} == {"works"}
    hang = ("another shape", "large", "100 by 100", "drawn")
    assert {found[name] for name in hang} == {"hangs"}
