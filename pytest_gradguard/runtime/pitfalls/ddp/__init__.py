"""`torch.distributed`: watched once this process belongs to a process group.

Every program that imports torch imports it, too: until a group is created, one function is wrapped.
"""

from __future__ import annotations

LIGHTNING = (
    "lightning.fabric.utilities.distributed",
    "lightning_fabric.utilities.distributed",
)
C10D = "torch.distributed.distributed_c10d"
