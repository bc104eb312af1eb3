"""Notes the gradients and parameters of the calling process: at each step, and at the end.

Computations of tasks are never noted: they run in other processes, in threads, or inline.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from pytest_gradguard.comparing import places
from pytest_gradguard.comparing.isolation import Isolation
from pytest_gradguard.comparing.notes import BACKWARD, END, GRADIENTS, STEP, STEPPED, Note, Writer
from pytest_gradguard.comparing.sketches import Sketch, sketch
from pytest_gradguard.runtime.kernel import callsite, inline
from pytest_gradguard.runtime.kernel.faults import attempt


class Noting:
    """Notes the events in the thread that has created it.

    Args:
        write: writes the notes.
        isolation: that of inline tasks.
    """

    def __init__(self, write: Writer, isolation: Isolation) -> None:
        self._write = write
        self.isolation = isolation
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._steps = 0
        self._known: dict[str, Any] = {}
        self._first_names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._stepped: set[int] = set()
        self._reads_gradients = False

    def is_here(self) -> bool:
        """Whether the program itself is running, not a task."""
        return (
            threading.get_ident() == self._thread
            and os.getpid() == self._process
            and not inline.in_task()
        )

    def backward(self, frame: FrameType) -> None:
        """Note a backward pass of the program."""
        self.isolation.fresh = True
        leaves = self._leaves(frame)
        found = {name: one.grad for name, one in leaves.items() if _trains(one) and one.is_leaf}
        self.add(BACKWARD, found)

    def gradients(self, gradients: Any) -> None:
        """Note gradients that were returned to the program."""
        self.add(GRADIENTS, {f"gradient {index}": one for index, one in enumerate(gradients)})

    def stepping(self, frame: FrameType, parameters: list[tuple[str, Any]]) -> None:
        """Note a torch optimizer that is about to step."""
        self.isolation.settle(ended=False)
        names = self._names(frame, parameters)
        self._stepped |= {id(one) for _, one in parameters}
        self.add(STEP, {name: self.isolation.gradient_of(one) for name, one in names.items()})

    def stepped(self, frame: FrameType, parameters: list[tuple[str, Any]]) -> None:
        """Note a step of a torch optimizer."""
        self.isolation.fresh = False
        names = self._names(frame, parameters)
        buffers = {name: one for name, one in self._leaves(frame).items() if not _trains(one)}
        self.add(STEPPED, {**names, **buffers})
        self._steps += 1

    def applied(self, before: bool, tensors: Mapping[str, Any]) -> None:
        """Note a Keras optimizer that is about to step, or has stepped."""
        self.add(STEP if before else STEPPED, tensors)
        self._steps += not before

    def handing_out(self, frame: FrameType) -> None:
        """Record that the program begins a call to workers."""
        self._leaves(frame)

    def end(self) -> None:
        """Note the end of the program."""
        self.isolation.settle(ended=True)
        found = {**self._known, **places.of_main()}
        values = dict(found)
        if self._reads_gradients:
            for name, one in found.items():
                if id(one) not in self._stepped and _trains(one):
                    values[f"{name}.grad"] = one.grad
        self.add(END, values, "")

    def add(self, kind: str, tensors: Mapping[str, Any], place: str | None = None) -> None:
        """Note tensors, by name."""
        sketches = {name: _sketch(one) for name, one in tensors.items()}
        where = inline.place() if place is None else place
        self._write.add(Note(kind, self._steps, where, sketches))

    def _leaves(self, frame: FrameType) -> dict[str, Any]:
        found = places.of_frames(frame)
        self._known.update(found)
        for name, one in found.items():
            if self._first_name(one) is None and type(one).__weakrefoffset__:
                self._first_names[id(one)] = weakref.ref(one), name
        self._reads_gradients = self._reads_gradients or any(
            _mentions_gradients(one.f_code) for one in callsite.user_frames(frame)
        )
        return found

    def _names(self, frame: FrameType, parameters: list[tuple[str, Any]]) -> dict[str, Any]:
        known = {id(one): name for name, one in self._leaves(frame).items()}
        return {
            known.get(id(one)) or self._first_name(one) or name: one for name, one in parameters
        }

    def _first_name(self, tensor: Any) -> str | None:
        """The program's first name for it."""
        reference, name = self._first_names.get(id(tensor), (None, None))
        return name if reference is not None and reference() is tensor else None


def _mentions_gradients(code: CodeType) -> bool:
    """Whether a function reads the attribute `grad`, itself or in a comprehension."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name[0] == "<"]
    return "grad" in code.co_names or any(map(_mentions_gradients, inner))


def _trains(tensor: Any) -> bool:
    return bool(getattr(tensor, "requires_grad", False))


def _sketch(tensor: Any) -> Sketch | None:
    if tensor is None:
        return None
    found: Sketch | None = attempt(lambda: sketch(_array(tensor)))
    return found


def _array(tensor: Any) -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        tensor = tensor.detach()
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        tensor = tensor.to("cpu").resolve_conj()
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor = tensor.float()
        return tensor.numpy()
    if hasattr(tensor, "values") and hasattr(tensor, "dense_shape"):  # IndexedSlices
        tensor = sys.modules["tensorflow"].convert_to_tensor(tensor)
    return tensor.numpy()
