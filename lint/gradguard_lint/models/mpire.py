"""mpire: pools whose functions get the items of tuples one by one."""

from __future__ import annotations

from gradguard_lint.models.rows import Hands, Library, Row

MAPS = {
    "map": Hands(items="spread", more=True),
    "map_unordered": Hands(items="spread", more=True),
    "imap": Hands(items="spread", more=True),
    "imap_unordered": Hands(items="spread", more=True),
    "apply": Hands(items="packed", gives="value", args=(1, "args"), many=False, more=True),
    "apply_async": Hands(items="packed", gives="future", args=(1, "args"), many=False, more=True),
}

LIBRARY = Library(
    tops=("mpire",),
    rows=(Row("mpire.WorkerPool mpire.pool.WorkerPool", "pool", methods=MAPS),),
)
