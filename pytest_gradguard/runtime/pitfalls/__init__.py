"""The pitfalls that the guard checks: one package for each family.

`ggNNN` in a family is the check of that code; the folders are the list of checks. It holds what is
particular to the pitfall, and imports no framework:

``CODE``
    The pitfall's code.
``Evidence``
    The message of its findings: a subclass of `evidence.Evidence`.
``PROBES``
    Its probes, if any (see `kernel.probes`).
``takes(item, framework)``
    Whether the check counts an object that needs a gradient and is pickled for workers; its
    evidence is a `TransferEvidence`. It runs for every parameter, so it has to be cheap.
``leaf_provenance(history, framework)``
    In a worker: what identifies the leaves behind a result that loses its graph, for `on_rebuilt`.
``on_rebuilt(token, note, item, *more)``
    Called in the parent once an object is rebuilt that a worker has noted for this check. The
    objects of a check without it are counted.
``on_module_returned(call, sent, task, module)``
    Called when a task has returned a copy of a module that it was sent.

Services that several checks use are in the kernel: the transfers that one pickling makes, the
tasks under watch. The catalogue's entry says what the guard detects of a pitfall.
"""

from __future__ import annotations

import os

HOMES = {
    name.partition(".")[0].upper(): f"{__name__}.{family}"
    for family in os.listdir(__path__[0])
    if not family.startswith("__")
    for name in os.listdir(os.path.join(__path__[0], family))
    if name.startswith("gg")
}
"""The package of each check, by its code."""

CROSSINGS = {
    "tensor": "GG101",
    "parameter": "GG107",
    "optimizer": "GG110",
    "gpu": "GG202",
    "result": "GG102",
}
"""The check that counts each kind of object in a pickling."""
