"""The variables of Keras's layers and optimizers, whatever its release.

Up to Keras 3.4 they are no `keras.Variable`, which is a class of its own there, and are no numbers.
"""

from __future__ import annotations

import sys
from typing import Any


def variable_class() -> Any:
    """The class that all of Keras's variables have in common; None before Keras is imported."""
    return getattr(sys.modules.get("keras.src.backend"), "Variable", None)


def is_variable(item: Any) -> bool:
    """Whether `item` is a variable of Keras's; its `__class__` is not asked."""
    kind = variable_class()
    return kind is not None and issubclass(type(item), kind)


def steps_of(optimizer: Any) -> int:
    """How many steps an optimizer of Keras's has taken."""
    return int(optimizer.iterations.numpy())
