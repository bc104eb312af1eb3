"""`torch.distributed`: what is watched once this process belongs to a process group.

Every program that imports torch imports that, too: until a group is made, one function is wrapped.
"""

from __future__ import annotations

from pytest_gradguard.runtime import watching

LIGHTNING = (
    "lightning.fabric.utilities.distributed",
    "lightning_fabric.utilities.distributed",
)
C10D = "torch.distributed.distributed_c10d"

watching.when_imported(C10D, *watching.lazily(f"{__name__}.groups"))
for _module in LIGHTNING:
    watching.when_imported(_module, *watching.lazily(f"{__name__}.lightning"))
