"""Write the page of other projects' suites to standard output, from what `make peers` recorded.

``python docs/make_peers.py > docs/peers.md``
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[1] / "tests" / "peers" / "results.json"

_HEAD = """\
# Other projects' test suites under the guard

<!-- Made by `python docs/make_peers.py > docs/peers.md`; do not edit. -->

The guard must not change a program. These suites, of the libraries whose workers it watches, run
once without it and once with it. Each test must end the same way, leave no more processes, threads,
file descriptors or temporary files behind, and have no finding at warning or above. `make peers`
runs them again; `tests/peers/suites.toml` lists each exception with its reason, and anything that
is not listed there fails the command.

A test that differs is run again, alone, five times without the guard and with it in turns. It is
different where what it did with the guard comes back, even once, and never comes without it;
otherwise it is unsteady by itself, and named below the table.

Recorded on {platform}, Python {python}. Failures in the table are those that the suite has without
the guard on this machine: most want a network or a library that is not installed. The last two
columns say what all tests together left behind, without the guard and with it.
"""

_COLUMNS = (
    *("suite", "version", "its tests are from", "tests", "passed", "skipped", "failed"),
    *("different", "unsteady", "findings", "left without", "left with"),
)

_PASSED = ("passed", "xfailed", "xpassed")
_SKIPPED = ("skipped", "nothing")


def page() -> str:
    """The whole page, in Markdown."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    lines = [_HEAD.format_map(record), _row(_COLUMNS), _row(["---"] * len(_COLUMNS))]
    lines += [_line(name, entry) for name, entry in record["suites"].items()]
    for name, entry in record["suites"].items():
        lines += _exceptions(name, entry)
    return "\n".join(lines) + "\n"


def _line(name: str, entry: dict[str, Any]) -> str:
    outcomes = entry["outcomes"]
    passed = sum(outcomes.get(one, 0) for one in _PASSED)
    skipped = sum(outcomes.get(one, 0) for one in _SKIPPED)
    failed = entry["tests"] - passed - skipped
    numbers = [entry["tests"], passed, skipped, failed]
    numbers += [len(entry[one]) for one in ("differences", "unsteady", "findings")]
    left = (_left(entry["left"][mode]) for mode in ("off", "on"))
    return _row([name, entry["version"], entry["origin"], *map(str, numbers), *left])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _left(number_of: dict[str, int]) -> str:
    """What all tests of a run left behind together."""
    return ", ".join(f"{number} {kind}" for kind, number in number_of.items()) or "nothing"


def _exceptions(name: str, entry: dict[str, Any]) -> list[str]:
    """What is different in a suite, by reason."""
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for one in entry["differences"] + entry["findings"]:
        by_reason[one["why"] or "unexplained"].append(f"`{one['test']}` ({one['kind']})")
    lines = [f"- {why.removesuffix('.')}: {', '.join(tests)}" for why, tests in by_reason.items()]
    lines += [
        f"- Unsteady: `{one['test']}` ({one['kind']}): {one['off']} without the guard, "
        f"{one['on']} with it"
        for one in entry["unsteady"]
    ]
    return ["", f"## {name}", "", *lines] if lines else []


if __name__ == "__main__":
    print(page(), end="")
