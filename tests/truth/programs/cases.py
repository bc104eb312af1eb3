"""How a program of this folder declares its cases and prints what they gave."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

_cases: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register `function` as a case; what it returns must fit into JSON."""
    _cases[function.__name__] = function
    return function


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `function` returns, or the name and the text of the exception that it raises."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return {"raises": type(error).__name__, "says": str(error)}


def main() -> None:
    """Run the cases that the command line names, or all."""
    for name in sys.argv[1:] or list(_cases):
        value = attempt(_cases[name])
        print(json.dumps({"case": name, "value": value}), flush=True)
