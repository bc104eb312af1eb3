"""Source of the program's is read without the warnings that Python has about it."""

from __future__ import annotations

import ast
import warnings

import pytest

from pytest_gradguard.runtime.kernel.parsing import parsed

WARNS = 'pattern = "\\d"\n'


@pytest.mark.parametrize("action", ["default", "always", "error", "once", "ignore"])
def test_reading_warns_of_nothing_and_leaves_the_filters(action: str) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        before = list(warnings.filters)
        assert ast.dump(parsed("x = 1")) == ast.dump(ast.parse("x = 1"))
        assert isinstance(parsed(WARNS).body[0], ast.Assign)
        with pytest.raises(SyntaxError):
            parsed("x =")
        assert list(warnings.filters) == before
    assert heard == []


def test_what_warned_once_does_not_warn_again() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        registry: dict[str, object] = {}
        for _ in range(2):
            warnings.warn_explicit("old", UserWarning, "a.py", 1, registry=registry)
            parsed(WARNS)
    assert len(heard) == 1
