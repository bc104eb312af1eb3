"""Write the page of other projects' suites to standard output, from what `make peers` recorded.

``python docs/make_peers.py > docs/peers.md``
"""

from __future__ import annotations

import collections
import json
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

Recorded on {platform}, Python {python}. Failures in the table are those that the suite has without
the guard on this machine: most want a network or a library that is not installed.

| suite | version | tests | passed | skipped | failed | different under the guard | findings |
| --- | --- | --- | --- | --- | --- | --- | --- |"""

_PASSED = ("passed", "xfailed", "xpassed")
_SKIPPED = ("skipped", "nothing")


def page() -> str:
    """The whole page, in Markdown."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    lines = [_HEAD.format_map(record)]
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
    numbers += [len(entry["differences"]), len(entry["findings"])]
    return f"| {name} | {entry['version']} | " + " | ".join(map(str, numbers)) + " |"


def _exceptions(name: str, entry: dict[str, Any]) -> list[str]:
    """What is different in a suite, by reason."""
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for one in entry["differences"] + entry["findings"]:
        by_reason[one["why"] or "unexplained"].append(f"`{one['test']}` ({one['kind']})")
    if not by_reason:
        return []
    lines = ["", f"## {name}", ""]
    return lines + [f"- {why}: {', '.join(tests)}" for why, tests in by_reason.items()]


if __name__ == "__main__":
    print(page(), end="")
