"""multiprocessing and packages with its interface: torch's, multiprocess, pathos, billiard."""

from __future__ import annotations

from gradguard_lint.domain.starts import Start
from gradguard_lint.models.rows import Library, Row
from gradguard_lint.words import words

MAPS = words(
    "map imap imap_unordered uimap map_async amap starmap istarmap starmap_async apply apply_async"
)
PATHOS = MAPS | {"pipe"}
ON_MULTIPROCESS = words("datasets multiprocess pathos")
"""Packages that use the processes of ``multiprocess``."""

LIBRARY = Library(
    tops=("multiprocessing", "multiprocess", "billiard", "pathos", "threading"),
    spelled={
        "billiard.": "multiprocess.",
        "pathos.multiprocessing.": "multiprocess.",
        "pathos.helpers.mp.": "multiprocess.",
        "multiprocess.process.": "multiprocess.",
        "multiprocess.context.": "multiprocess.",
        "multiprocess.pool.": "multiprocess.",
        "multiprocessing.process.": "multiprocessing.",
        "multiprocessing.context.": "multiprocessing.",
        "multiprocessing.pool.": "multiprocessing.",
        "torch.multiprocessing.pool.": "torch.multiprocessing.",
        "torch.multiprocessing.spawn.spawn": "torch.multiprocessing.spawn",
        "torch.multiprocessing.spawn.start_processes": "torch.multiprocessing.start_processes",
    },
    rows=(
        Row("multiprocessing.Pool torch.multiprocessing.Pool", "pool", methods=MAPS),
        Row(
            "multiprocess.Pool multiprocess.ProcessPool multiprocess.ProcessingPool "
            "pathos.pools.ProcessPool pathos.pools._ProcessPool",
            "pool",
            methods=PATHOS,
        ),
        Row(
            "multiprocessing.ThreadPool multiprocessing.dummy.Pool multiprocess.ThreadPool "
            "multiprocess.dummy.Pool pathos.pools.ThreadPool pathos.threading.ThreadPool",
            "pool",
            start="thread",
            methods=PATHOS,
        ),
        Row("multiprocessing.Process torch.multiprocessing.Process", "process"),
        Row("multiprocess.Process", "process"),
        Row("threading.Thread", "process", start="thread"),
        Row(
            "torch.multiprocessing.spawn torch.multiprocessing.start_processes",
            "spawn",
            start="spawn",
        ),
        Row(
            "multiprocessing.set_start_method torch.multiprocessing.set_start_method "
            "multiprocess.set_start_method",
            "start-method",
            argument=(0, "method"),
        ),
        Row(
            "multiprocessing.get_start_method torch.multiprocessing.get_start_method "
            "multiprocess.get_start_method",
            "start-method-now",
            argument=(0, "allow_none"),
        ),
        Row(
            "multiprocessing.parent_process multiprocess.parent_process "
            "torch.multiprocessing.parent_process",
            "parent-process",
        ),
        Row(
            "multiprocessing.current_process multiprocess.current_process "
            "torch.multiprocessing.current_process",
            "current-process",
        ),
        Row("multiprocessing.cpu_count multiprocess.cpu_count", "asks-cpus"),
        Row(
            " ".join(
                f"{module}.{name}"
                for module in ("multiprocessing", "multiprocess", "threading")
                for name in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition")
            ),
            "thing",
            kind="lock",
        ),
        Row(
            "threading.Event queue.Queue queue.LifoQueue queue.PriorityQueue queue.SimpleQueue",
            "signal",
        ),
    ),
    starts=(
        Start("spawn", "process", "spawned workers"),
        Start("forkserver", "process", "workers of a fork server"),
    ),
)
