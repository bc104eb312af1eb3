"""Runs programs with their workers and inline, in one process; prints what was compared as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pytest_gradguard import guard
from pytest_gradguard.cli.program import find_script
from pytest_gradguard.comparing import difference, notes
from pytest_gradguard.comparing.recording import recording
from pytest_gradguard.comparing.running import ROUNDING, explaining
from pytest_gradguard.runtime.kernel import inline


def run(program: str, path: Path, *, inlined: bool) -> Any:
    """Run a program; what the guard finds, how many tasks ran inline, and what it prints."""
    printed = io.StringIO()
    with guard("record") as report, contextlib.redirect_stdout(printed):
        with recording(path, inlined=inlined):
            find_script(program).execute([])
        return report.findings, inline.state.handed if inlined else 0, printed.getvalue()


def compare(program: str, folder: Path) -> dict[str, Any]:
    """What a comparison of the program says."""
    bare, alone = folder / "bare", folder / "alone"
    findings, _, printed = run(program, bare, inlined=False)
    _, handed, again = run(program, alone, inlined=True)
    found = difference.first(notes.read(bare), notes.read(alone), *ROUNDING)
    return {
        "differs": found is not None,
        "tensor": "" if found is None else found.tensor,
        "codes": [finding.code for finding in explaining(findings)],
        "handed": handed,
        "notes": len(list(notes.read(bare))),
        "printed": [printed, again],
    }


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)  # forks are not what is tried here
    main, answers = sys.modules["__main__"], {}
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            answers[Path(name).stem] = compare(name, Path(folder))
        sys.modules["__main__"] = main
    print(json.dumps(answers))
