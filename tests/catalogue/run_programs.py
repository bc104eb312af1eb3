"""Run programs under the guard, one after the other, and print one JSON line for each.

``python run_programs.py FOLDER NAME…`` runs ``FOLDER/NAME/main.py`` for each name. They share one
process, so that torch or TensorFlow is imported once. Programs for a GPU get pretended ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from pytest_gradguard import guard

FOR_GPUS = ("GG201", "GG202", "GG203", "GG204", "GG205")
"""What the names of programs for GPUs begin with."""


def outcome(program: Path) -> dict[str, Any]:
    """What the program printed, what it raised, and what the guard found."""
    said, raised = io.StringIO(), None
    os.chdir(program.parent)
    sys.path.insert(0, str(program.parent))
    devices = 2 if program.parent.name.startswith(FOR_GPUS) else None
    with guard("record", simulate_gpu=devices) as report:
        try:
            with contextlib.redirect_stdout(said):
                _kept = runpy.run_path(str(program), run_name="__main__")
        except Exception as error:
            raised = [type(error).__name__, str(error), *getattr(error, "__notes__", ())]
        finally:
            sys.path.remove(str(program.parent))
            leave_group()
        found = {finding.code: finding.severity.label for finding in report.findings}
        fixes = {finding.code: finding.fix for finding in report.findings}
    prints = said.getvalue().splitlines()
    return {"prints": prints, "raises": raised, "found": found, "fixes": fixes}


def leave_group() -> None:
    """Leave the process group of a program that has ended with an error.

    torch ends the threads of a group when its last object goes (that of the program's model, after
    this), and holds the GIL as it waits for them. One that has just finished a collective waits for
    the GIL: about one run in 150 would hang.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return
    if distributed.is_initialized():
        distributed.destroy_process_group()
    time.sleep(0.1)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        result = outcome(root / name / "main.py")
        print(json.dumps({"program": name, **result}), flush=True)
