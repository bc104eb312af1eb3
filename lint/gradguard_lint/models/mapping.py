"""Functions that map over processes or threads by themselves, with a bar that shows how far."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row

LIBRARY = Library(
    tops=("tqdm.contrib.concurrent", "p_tqdm"),
    rows=(
        Row("tqdm.contrib.concurrent.process_map", "mapping"),
        Row("tqdm.contrib.concurrent.thread_map", "mapping", start="thread"),
        Row("p_tqdm.p_map p_tqdm.p_umap p_tqdm.p_imap p_tqdm.p_uimap", "mapping"),
    ),
)
