"""The pitfalls that the guard checks: a package for each family, with everything of it.

`ggNNN` in one of them is the check of that code, and the folders are the list. It holds what is
particular to the pitfall, and imports no framework:

``CODE``
    The pitfall's code.
``Evidence``
    What its findings say: a kind of `evidence.Evidence`.
``PROBES``
    What it asks as a parallel call begins and looks at where its tasks run (see `kernel.probes`),
    if anything.
``takes(item, framework)``
    Whether it has something to say of an object that needs a gradient, and is pickled for workers;
    its evidence is a `TransferEvidence`. It runs for every parameter, so it costs next to nothing.
``leaf_provenance(history, framework)``
    In a worker: what identifies the leaves behind a result that loses its graph, for `on_rebuilt`.
``on_rebuilt(token, note, item, *more)``
    Called in the parent once an object is rebuilt that a worker has noted for this check. The
    object of a check without it is counted.
``on_module_returned(call, sent, task, module)``
    Called when a task has returned a copy of a module that it was sent.

How to see things that several checks stand on is a service of the kernel: what one pickling takes
along, the tasks under watch. What the guard sees of a pitfall, and what not, is said in the
catalogue's entry.
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
"""By the code of each check: the package that it is in."""

CROSSINGS = {
    "tensor": "GG101",
    "parameter": "GG107",
    "optimizer": "GG110",
    "gpu": "GG202",
    "result": "GG102",
}
"""By what one pickling takes along: the check that counts it."""
