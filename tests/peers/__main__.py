"""Runs the suites of other projects without the guard and with it (`make peers`).

Every test has to end as it does without the guard, to leave no more processes, threads,
descriptors or temporary files behind, and to have no finding at warning or above; what is otherwise
for a reason is listed with it in suites.toml. Exit status 1: something is not listed there.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from compare import Difference, Result, differences, forget_last, read
from suites import LeftOut, Suite, Tests, suites

HERE = Path(__file__).parent
RECORD = HERE / "results.json"
WORK = Path(sys.prefix) / "peers"
"""Sources and runs; `make clean` removes it."""
PACKAGES = WORK / "packages"
"""What is installed for these suites alone."""

_AGAIN = 5
"""How often a test that differs is run again, alone, without the guard and with it in turns."""
_RESTARTS = 20
"""How often a suite that a test has killed goes on with the next test."""
_RUN_LIMIT = 3600


def main() -> int:
    every = suites()
    parser = argparse.ArgumentParser(prog="tests/peers", description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="all of them without any")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--resume", action="store_true", help="go on with runs that were stopped")
    options = parser.parse_args()
    names = [suite.name for suite in every]
    unknown = [name for name in options.suites if name not in names]
    if unknown:
        parser.error(f"no suite {unknown[0]!r} (there are {', '.join(names)})")
    if not sys.platform.startswith("linux"):
        parser.error("what tests leave behind is read from /proc, which only Linux has")
    # What a shell runs in the background ignores SIGINT, as all that it starts then does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.append(str(PACKAGES))
    entries: dict[str, Any] = {}
    good = True
    for suite in every:
        if options.suites and suite.name not in options.suites:
            continue
        try:
            entry = _tried(suite, options.resume)
        except LeftOut as reason:
            print(f"{suite.name}: left out: {reason}", flush=True)
            continue
        entries[suite.name] = entry
        good &= not any(one["why"] == "" for one in entry["differences"] + entry["findings"])
    if options.record:
        _record(entries, names)
    return 0 if good else 1


def _record(entries: dict[str, Any], names: list[str]) -> None:
    """Write these entries, and keep those of the suites that did not run now."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    entries = recorded.get("suites", {}) | entries
    record = {
        "python": platform.python_version(),
        "platform": platform.system(),
        "suites": {name: entries[name] for name in names if name in entries},
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _tried(suite: Suite, resume: bool) -> dict[str, Any]:
    """Run `suite` both ways, print what differs, and return its entry in the record.

    With `resume`, tests that ended in an earlier run that was stopped are not run again.

    Raises:
        LeftOut: its tests can't be had here.
    """
    tests = suite.found(WORK / "sources")
    folder = WORK / "runs" / suite.name
    if resume:
        for lines in folder.glob("*/tests.jsonl"):
            forget_last(lines)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    runs: dict[str, dict[str, list[Result]]] = {}
    for mode in ("off", "on"):
        started = time.monotonic()
        results = _run(suite, mode, tests, folder / mode)
        runs[mode] = {test: [result] for test, result in results.items()}
        print(
            f"{suite.name} {suite.version}, guard {mode}: {_counts(results)}, "
            f"{time.monotonic() - started:.0f} s",
            flush=True,
        )
    always, sometimes = differences(runs["off"], runs["on"])
    for number in range(_AGAIN):
        again = {one.test for one in always} & runs["off"].keys() & runs["on"].keys()
        for place, test in enumerate(sorted(again)):
            for mode in ("off", "on"):
                results = _run(suite, mode, tests, folder / f"{mode}-{number}-{place}", test)
                for name, result in results.items():
                    runs[mode][name].append(result)
        always, sometimes = differences(runs["off"], runs["on"])
    findings = [one.explained(suite.known) for one in _findings(folder / "on")]
    always = [one.explained(suite.known) for one in always]
    for one in always:
        print(f"  {one}\n    {one.why or 'NOT LISTED'}")
    for one in findings:
        print(f"  {one.test}: {one.kind}: {one.on}\n    {one.why or 'NOT LISTED'}")
    for one in sometimes:
        print(f"  unsteady: {one}")
    off, on = ({test: results[0] for test, results in runs[mode].items()} for mode in ("off", "on"))
    return {
        "version": suite.version,
        "origin": tests.origin,
        "tests": len(off),
        "outcomes": dict(_count(off)),
        "differences": [one.as_record() for one in always],
        "unsteady": [one.as_record() for one in sometimes],
        "left": {"off": _left(off), "on": _left(on)},
        "findings": [one.as_record() for one in findings],
    }


def _run(
    suite: Suite,
    mode: str,
    tests: Tests,
    folder: Path,
    only: str | None = None,
) -> dict[str, Result]:
    """The results of the tests, or of `only` this one, in a run of their own in `folder`."""
    for name in ("temporary", "current"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = folder / "tests.jsonl"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "observer", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "-p", "no:rerunfailures"]
    command += ["--continue-on-collection-errors", f"--observe={lines}"]
    # No configuration: a suite's own asks for plugins, such as that of coverage.
    command += ["-c", os.devnull, f"--rootdir={tests.root}"]
    command += [f"--observe-limit={suite.limit}", *suite.options]
    if only is None:
        command += tests.arguments
    else:
        chosen = folder / "only.txt"
        chosen.write_text(only, encoding="utf-8")
        command += [f"--observe-only={chosen}", str(tests.root / only.partition("::")[0])]
    paths = [HERE, PACKAGES, *([tests.root / suite.path] if suite.path else [])]
    environment = os.environ | suite.environment
    environment["TMPDIR"] = str(folder / "temporary")
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *inherited])
    for _ in range(_RESTARTS):
        before = read(lines)
        flags = ["--gradguard", "--gradguard-fail-on=never"] if mode == "on" else []
        flags += [f"--gradguard-report={folder / f'findings-{len(before)}.json'}"] if flags else []
        with (folder / "output.txt").open("a", encoding="utf-8") as output:
            try:
                subprocess.run(
                    [*command, *flags],
                    cwd=tests.current or folder / "current",
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=_RUN_LIMIT,
                )
            except subprocess.TimeoutExpired:
                print(f"{suite.name}, guard {mode}: not finished after {_RUN_LIMIT} s")
                break
        now = read(lines)
        if len(now) == len(before) or all(
            result.outcome != "died" for test, result in now.items() if test not in before
        ):
            break  # it came to its end
    results = read(lines)
    if not results and only is None:
        raise LeftOut(f"no test ran: see {folder / 'output.txt'}")
    return results


def _findings(folder: Path) -> list[Difference]:
    """The findings at warning or above, and the guard's own faults."""
    found = []
    for file in sorted(folder.glob("findings-*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        for one in report["findings"]:
            if one["severity"] != "info":
                on = f"{one['severity']}: {one['message']}"
                found.append(Difference(one["code"], one["test"] or "", "", on))
        found += [Difference("fault", "", "", one["message"]) for one in report["errors"]]
    return found


def _count(results: dict[str, Result]) -> collections.Counter[str]:
    return collections.Counter(result.outcome for result in results.values())


def _left(results: dict[str, Result]) -> dict[str, int]:
    """How much the tests left behind together."""
    total: collections.Counter[str] = collections.Counter()
    for result in results.values():
        total.update(dict(result.left))
    return dict(sorted(total.items()))


def _counts(results: dict[str, Result]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in _count(results).most_common())


if __name__ == "__main__":
    sys.exit(main())
