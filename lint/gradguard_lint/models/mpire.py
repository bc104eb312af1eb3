"""mpire: pools whose functions get the items of tuples one by one."""

from __future__ import annotations

from gradguard_lint.models.rows import Hands, Library, Row

MAPS = {
    "map": Hands(items="spread"),
    "map_unordered": Hands(items="spread"),
    "imap": Hands(items="spread"),
    "imap_unordered": Hands(items="spread"),
    "apply": Hands(items="packed", gives="value", args=(1, "args"), many=False),
    "apply_async": Hands(items="packed", gives="future", args=(1, "args"), many=False),
}

LIBRARY = Library(
    tops=("mpire",),
    rows=(Row("mpire.WorkerPool mpire.pool.WorkerPool", "pool", methods=MAPS),),
)
