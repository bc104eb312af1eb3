"""Print the table of primitives for ``docs/stubs.md``: python docs/make_primitives.py"""

from __future__ import annotations

import inspect
import re

from gradguard_lint.models import primitives


def main() -> None:
    print("| primitive | what it says |")
    print("| --- | --- |")
    for full in primitives.PRIMITIVES:
        name = full.rpartition(".")[2]
        function = getattr(primitives, name)
        _, *parameters = inspect.signature(function).parameters.values()
        given = ", ".join(map(_written, parameters))
        says = " ".join((function.__doc__ or "").split())
        print(f"| `{name}({given})` | {says} |")


def _written(parameter: inspect.Parameter) -> str:
    if parameter.annotation == "Args":
        return "*args, **kwargs"
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    if parameter.default is parameter.empty:
        return f"{star}{parameter.name}"
    return re.sub(r"\s+", "", f"{parameter.name}={parameter.default!r}")


if __name__ == "__main__":
    main()
