"""Functions that map over processes or threads by themselves, with a bar that shows how far."""

from __future__ import annotations

from gradguard_lint.models.rows import Hands, Library, Row

OWN = frozenset({"max_workers", "chunksize", "tqdm_class", "desc", "total", "num_cpus"})
EACH = Hands(function=(0, "fn"), items="each", own=OWN)

LIBRARY = Library(
    tops=("tqdm.contrib.concurrent", "p_tqdm"),
    rows=(
        Row("tqdm.contrib.concurrent.process_map", "mapping", hands=EACH),
        Row("tqdm.contrib.concurrent.thread_map", "mapping", start="thread", hands=EACH),
        Row("p_tqdm.p_map p_tqdm.p_umap p_tqdm.p_imap p_tqdm.p_uimap", "mapping", hands=EACH),
    ),
)
