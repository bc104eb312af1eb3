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
                runpy.run_path(str(program), run_name="__main__")
        except Exception as error:
            raised = [type(error).__name__, str(error)]
        finally:
            sys.path.remove(str(program.parent))
            leave_group()
        found = {finding.code: finding.severity.label for finding in report.findings}
    return {"prints": said.getvalue().splitlines(), "raises": raised, "found": found}


def leave_group() -> None:
    """Leave the process group of a program that has ended with an error."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        result = outcome(root / name / "main.py")
        print(json.dumps({"program": name, **result}), flush=True)
