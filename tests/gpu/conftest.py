"""The tests on a real GPU import `gpu_tasks`, which their workers import by name too."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
