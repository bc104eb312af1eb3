"""JAX: what starts its threads, and what waits for them in a process that is forked afterwards."""

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
    assert set(facts["questions_about_devices"].values()) == {"hangs"}


def test_every_array_and_every_call_starts_the_threads(facts: Any) -> None:
    assert set(facts["arrays_and_calls"].values()) == {"hangs"}


def test_transforms_and_types_start_no_threads(facts: Any) -> None:
    assert set(facts["what_computes_nothing"].values()) == {"works"}


def test_reading_a_result_in_a_forked_process_hangs(facts: Any) -> None:
    found = facts["in_the_worker"]
    assert {found[name] for name in ("sum", "asarray", "stack", "draw")} == {"hangs"}


def test_work_that_reads_no_result_goes_on_in_a_forked_process(facts: Any) -> None:
    found = facts["in_the_worker"]
    assert {found[name] for name in ("made", "numpy", "types")} == {"works"}


def test_what_the_parent_has_run_before_works_again_where_it_is_small(facts: Any) -> None:
    found = facts["what_has_run_before"]
    assert {found[name] for name in ("once more", "another number")} == {"works"}
    hang = ("another shape", "large", "100 by 100", "drawn")
    assert {found[name] for name in hang} == {"hangs"}
