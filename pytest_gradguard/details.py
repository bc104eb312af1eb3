"""What a finding knows of its case: the keys of its `details`, and what they hold.

A finding of the runtime has at least the first seven of `Details`, and `backend`; they are None
where they say nothing of its case. The others depend on its code.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Direction = Literal["argument", "capture", "result"]
"""How an object crosses: given to a task, taken along with its function, or handed back."""


class Sample(TypedDict, total=False):
    """One of the objects that a finding is about."""

    name: str
    """What the program calls it."""
    object: str
    direction: Direction
    function: str
    parameter: str | None
    """The function's parameter that it is in."""
    history: str | None
    type: str | None
    shape: list[int | None] | None
    dtype: str | None
    device: str | None


class Setting(TypedDict):
    """A setting of the caller's that a task does not have."""

    caller: Any
    worker: Any
    function: str
    """What needs it there."""


class Details(TypedDict, total=False):
    """What was observed."""

    framework: str | None
    direction: Direction | None
    object: str | None
    """The path to it, such as `args[0].encoder.weight`, or its name."""
    type: str | None
    shape: list[int | None] | None
    """In elements, by dimension; None for a dimension that is not known."""
    dtype: str | None
    device: str | None
    # of several codes
    function: str
    """The task's; or that of the library, which was called."""
    history: str | None
    """The operation that made the first object."""
    kind: str
    """The type of a random generator."""
    objects: list[str]
    """The paths of the first few objects."""
    partial_gradient: list[str]
    """What received a part of its gradient only."""
    processes: list[int]
    """The processes that it was seen in, by their ids."""
    reason: str
    """Why a gradient is missing, in a word."""
    shared_memory: bool
    """Its values lie in memory that the processes share."""
    subject: str
    """The first object by its name, with its role."""
    tensors: list[Sample]
    """The first few objects."""
    without_gradient: list[str]
    """What received no gradient."""
    workers: int
    """How many processes."""
    # of one
    after: str | None
    """What `CUDA_VISIBLE_DEVICES` is changed to, and before, from."""
    before: str | None
    buffers: list[str]
    causes: list[str]
    """What was seen to make ranks differ: codes, or words."""
    code: list[str]
    """What makes the settings of the caller's, in Python."""
    compared_ranks: list[int]
    """The two ranks."""
    confirmed: bool
    """A gradient was seen to be missing."""
    context_bytes: list[int]
    """What each GPU context takes."""
    copies: int
    did: str
    """What a task did without the mode of the caller's, in words."""
    difference: float
    """The largest one between numbers of the ranks."""
    epoch: int
    explained_by: list[str]
    """The codes of the findings that explain it."""
    failed: str | None
    """The error that the attempt to use a GPU ended in."""
    generator: bool
    """It was the program's generator of tasks."""
    generators: list[str]
    """The libraries whose global generators were drawn from."""
    hangs: bool
    """The program waits forever for it."""
    here: str
    """The value in this process; `in_worker`, in the worker."""
    in_worker: str
    instead: list[str]
    """What became of the gradients that did not arrive."""
    iterations: int
    """The steps that an optimizer has taken."""
    mode: str
    num_workers: int
    of_all: int
    over_copies: bool
    """It was made of copies that were made for the task."""
    parameters: Any
    precision: str
    """The dtype of the losses that were compared."""
    rank: int
    refused: str
    """Its framework refuses to send it."""
    replaced: list[str]
    results: int
    returned: int
    settings: dict[str, Setting]
    step: int
    """After how many steps of the optimizer."""
    stored: int
    tape: str
    world_size: int


class FindingDetails(Details, total=False):
    """The `details` of a finding, of the runtime or the linter."""

    backend: str | None
    """The kind of workers."""
    explains: list[dict[str, Any]]
    """The graver findings that this one is a part of."""
    messages: list[str]
    """The messages of the findings that it stands for, where they differ."""
    ranks: list[int]
    """The ranks of a process group that have found it."""
    watched: Any
    """What was watched, with what came of each."""
    # of the linter
    what: str
    handed_out_at: dict[str, Any]
    """Where the work is handed to workers."""
    also_from: list[dict[str, Any]]
    """The other such places from which the same line is reached."""
    library: str
    start_method: str
