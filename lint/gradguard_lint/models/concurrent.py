"""concurrent.futures; loky, whose executors have its methods; asyncio's access to both."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row

EXECUTOR = frozenset({"submit", "map"})

LIBRARY = Library(
    tops=("concurrent", "loky", "asyncio"),
    starts_by=("run_in_executor", "to_thread"),
    spelled={
        "concurrent.futures.process.": "concurrent.futures.",
        "concurrent.futures.thread.": "concurrent.futures.",
        "joblib.externals.loky.": "loky.",
    },
    rows=(
        Row("concurrent.futures.ProcessPoolExecutor", "executor", methods=EXECUTOR),
        Row("concurrent.futures.ThreadPoolExecutor", "executor", start="thread", methods=EXECUTOR),
        Row(
            "loky.get_reusable_executor loky.ProcessPoolExecutor",
            "executor",
            start="loky",
            methods=EXECUTOR,
        ),
        Row(
            "asyncio.run asyncio.create_task asyncio.ensure_future asyncio.wait_for asyncio.shield",
            "identity",
        ),
    ),
)
