"""Marks for tests of what old releases of joblib have not."""

from __future__ import annotations

import joblib
import pytest

_RELEASE = tuple(map(int, joblib.__version__.split(".")[:2]))
GENERATOR = pytest.mark.skipif(_RELEASE < (1, 3), reason="new in joblib 1.3")
UNORDERED = pytest.mark.skipif(_RELEASE < (1, 4), reason="new in joblib 1.4")
