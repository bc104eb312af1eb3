"""Parameter sizes of torch's own modules."""

from __future__ import annotations

from math import prod

from gradguard_lint.engine.ports import Args

_COPIED_BY_ONE = 16_384
"""The number of elements that one thread copies into shared memory, for any type: above 32 KiB,
several threads do (observed with 8,280 elements of four bytes, not with 8,190, and with 16,512 of
two)."""

_FLAT = {
    "Linear": "in_features out_features",
    "Bilinear": "in1_features in2_features out_features",
    "Embedding": "num_embeddings embedding_dim",
    "EmbeddingBag": "num_embeddings embedding_dim",
}
"""Modules whose weight has these sizes."""

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
"""The number of weights that a recurrent module stores as one."""


def is_copied_by_threads(short: str, args: Args) -> bool:
    """Whether ``share_memory()`` copies a parameter of that module in several threads."""
    return _largest(short, args) > _COPIED_BY_ONE


def _largest(short: str, args: Args) -> int:
    """The minimum size of the largest weight of that module; 0 if unknown."""
    if short in _FLAT:
        return prod(_sizes(_FLAT[short], args))
    gates = _GATES.get(short.removesuffix("Cell"))
    if gates:
        given, hidden = _sizes("input_size hidden_size", args)
        projected = args.get(None, "proj_size") is not None
        return gates * hidden * (given if projected else max(given, hidden))
    if short.startswith("Conv") and args.get(6, "groups") is None:
        given, made, kernel = _sizes("in_channels out_channels kernel_size", args)
        return prod((given, made, *[max(kernel, 1)] * int(short[-2])))
    return 0


def _sizes(names: str, args: Args) -> list[int]:
    """The sizes of these names or positions, 0 for unknown ones."""
    given = [args.constant(position, name) for position, name in enumerate(names.split())]
    return [size if isinstance(size, int) else 0 for size in given]
