"""Draw what a terminal shows of the first example, for the README: needs rich.

``python docs/make_terminal.py`` writes ``docs/terminal.svg``, from a run of pytest.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
EXAMPLE = DOCS.parent / "examples" / "test_a_changed_in_a_worker.py"
COLUMNS = 100
COMMAND = f"pytest --gradguard {EXAMPLE.name}"


def main() -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--no-header"),
            *("-p", "no:asyncio", "-o", "addopts=", "--gradguard", EXAMPLE.name),
        ],
        cwd=EXAMPLE.parent,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {COMMAND}", style="bold"))
    console.print(Text.from_ansi(run.stdout.rstrip()))
    drawn = console.export_svg(title="pytest --gradguard", unique_id="terminal")
    # A picture on a page may load nothing: the font is the reader's own.
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = "\n".join(line.rstrip() for line in drawn.splitlines())
    (DOCS / "terminal.svg").write_text(drawn + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
