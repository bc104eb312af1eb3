"""A tensor as it was before an inline task."""

from __future__ import annotations

from typing import Any


class Before:
    """A parameter, buffer or leaf as it was before a task; during the task it has no gradient."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.version = 0
        self.value = tensor.detach().clone()
        self.gradient = tensor.grad if tensor.is_leaf else None
        shared = self.gradient is not None and self.gradient.is_shared()
        self._separate = tensor.is_leaf and tensor.requires_grad and not shared
        if self._separate:
            tensor.grad = None

    @property
    def changed(self) -> bool:
        """Whether the task has changed its value."""
        now = self.tensor.detach()
        same = now.shape == self.value.shape and now.dtype == self.value.dtype
        return not (same and bool(((now == self.value) | (now != now)).all()))

    @property
    def left(self) -> Any:
        """The gradient that the task has left, if any."""
        return self.tensor.grad if self._separate else None

    def put_back_value(self) -> None:
        """Undo the task's changes of the value."""
        if self.tensor.shape == self.value.shape:
            self.tensor.data.copy_(self.value)
        else:
            self.tensor.data = self.value

    def put_back_gradient(self) -> None:
        """Undo the task's changes of the gradient."""
        if self._separate:
            self.tensor.grad = self.gradient

    def keep_gradient(self, fresh: bool) -> None:
        """Add the gradient that the task has left to that from before.

        Args:
            fresh: the program's own backward pass has computed the one from before.
        """
        left, before = self.left, self.gradient
        if left is None or (fresh and before is not None and bool(before.any())):
            self.put_back_gradient()
        elif before is not None:
            self.tensor.grad = before + left
