"""mpire: pools that unpack tuples into arguments."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row
from gradguard_lint.words import words

MAPS = words("map map_unordered imap imap_unordered apply apply_async")

LIBRARY = Library(
    tops=("mpire",), rows=(Row("mpire.WorkerPool mpire.pool.WorkerPool", "pool", methods=MAPS),)
)
