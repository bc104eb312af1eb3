"""NumPy's global random generator in forked processes."""

from __future__ import annotations

import sys
from typing import Any

import numpy
import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux"),
    pytest.mark.skipif(numpy.__version__ < "2", reason="NumPy 1 makes it as it is imported"),
]


@pytest.fixture(scope="module")
def facts(facts_of: Any) -> Any:
    return facts_of("numpy_random")


def test_forked_processes_draw_alike_once_the_parent_has_loaded_it(facts: Any) -> None:
    """Forked processes draw the same numbers once the parent has loaded `numpy.random`."""
    assert facts["loaded"] == {"loaded": True, "streams": 1}


def test_they_draw_apart_where_the_parent_has_not(facts: Any) -> None:
    """They draw different numbers where the parent has not loaded it."""
    assert facts["untouched"] == {"loaded": False, "streams": 3}
    assert facts["after_torch"] == {"loaded": False, "streams": 3}
