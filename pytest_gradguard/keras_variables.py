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
    """How many steps an optimizer of Keras's has taken.

    Up to Keras 3.8, one that scales losses counts none itself, but the one inside it does.
    """
    return int(innermost(optimizer).iterations.numpy())


def innermost(optimizer: Any) -> Any:
    """The optimizer that makes the steps, inside those that scale losses."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return optimizer
