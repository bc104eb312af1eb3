"""A parallel call under a recording tape: the tape does not see what the workers compute."""

from __future__ import annotations

from collections.abc import Iterator

from gradguard_lint.domain.effects import ParallelCall, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Capture, TapeGradient
from gradguard_lint.domain.shapes import idents, inner
from gradguard_lint.domain.values import (
    ANYTHING,
    Atom,
    Instance,
    Method,
    Tensor,
    Thing,
    Unknown,
    of,
)
from gradguard_lint.rules.base import Examples, Report, severed_by

CODE = "GG105"


def recorded(atom: Atom) -> bool:
    """Whether a tape would record what is done with `atom`."""
    if isinstance(atom, Tensor):
        return atom.framework == "tensorflow"
    if isinstance(atom, Instance):
        return atom.cls.what == "keras"
    return isinstance(atom, Thing) and atom.kind in ("keras-model", "keras-layer")


def uses_tape(task: TaskRun) -> bool:
    """Whether TensorFlow tensors, variables or models go in or come out."""
    if any(recorded(atom) for _, atom, _ in task.contents):
        return True
    if task.result is not None and any(recorded(atom) for atom in inner(task.result)):
        return True
    return any(
        recorded(atom)
        for effect in of_kinds(task.effects, Capture)
        for atom in inner(effect.payload.value, 2)
    )


_LACKS = {
    None: "the gradient is None, or lacks what `{}` computes",
    "warning": "a gradient through what `{}` computes is None, or lacks that",
    "info": "the gradients that are asked for here do not go through `{}`",
}
"""What that does to the gradients, by the severity."""


def _severity(program: Program, call: ParallelCall) -> str | None:
    """None, for an error, where a gradient certainly lacks what the tasks compute: the tape is
    asked for it, by what they return, for what they are given. Info where it lacks nothing."""
    asked = [
        effect
        for effect in program.effects_of(TapeGradient)
        if effect.worker is None and call.ident in effect.calls
    ]
    given: set[int] = set()
    for task in call.tasks:
        crossing = [atom for _, atom, _ in (*task.contents, *task.given)]
        captured = [effect.payload.value for effect in of_kinds(task.effects, Capture)]
        given |= set().union(*map(idents, (*map(of, crossing), *captured)))
    behind = [_behind(task) for task in call.tasks]
    known = [made_from for made_from in behind if made_from is not None]
    if len(known) == len(behind):
        given &= set().union(*known)
    severity = "info" if asked else "warning"
    for effect in asked:
        sources = idents(effect.payload.sources) & given
        anything = any(_may_be(atom, given) for atom in inner(effect.payload.sources))
        if not sources and not anything:
            continue
        if call.ident in severed_by(effect.target):
            if sources:
                return None
            severity = "warning"
        elif any(isinstance(atom, Unknown) for atom in inner(effect.target)):
            severity = "warning"
    return severity


def _behind(task: TaskRun) -> set[int] | None:
    """What the results of `task` were computed from, and a gradient would reach; None where that
    may be anything, or it hands its tensors over in another way."""
    results = () if task.result is None else inner(task.result)
    tensors = [atom for atom in results if isinstance(atom, Tensor)]
    if not tensors or any(ANYTHING in tensor.sources for tensor in tensors):
        return None
    return {ident for tensor in tensors for ident in (tensor.ident, *tensor.sources)}


def _may_be(atom: Atom, given: set[int]) -> bool:
    """Whether `atom` may be anything, or something of what the tasks were `given`."""
    while isinstance(atom, Method):
        atom = atom.receiver
        if idents(of(atom)) & given:
            return True
    return isinstance(atom, Unknown)


def check(program: Program) -> Iterator[Report]:
    for call in program.calls:
        tape = call.modes.tape
        if tape is None:
            continue
        for task in call.tasks:
            if uses_tape(task):
                severity = _severity(program, call)
                yield Report(
                    call.site,
                    f"`{task.name}` computes in {call.workers} while a tape records in this "
                    f"thread only: {_LACKS[severity].format(task.name)}.",
                    (Step(tape, "the tape is opened here"),),
                    severity=severity,
                    call=call,
                )
                break


BAD: Examples = {
    "threads": """\
import tensorflow as tf
from joblib import Parallel, delayed

weights = tf.Variable([1.0, 2.0])


def part(variable, k):
    return tf.reduce_sum(variable * k)


with tf.GradientTape() as tape:
    parts = Parallel(n_jobs=2, backend="threading")(  # GG105
        delayed(part)(weights, k) for k in (1.0, 2.0)
    )
    loss = tf.add_n(parts)
print(tape.gradient(loss, weights))
""",
    "processes": """\
import tensorflow as tf
from joblib import Parallel, delayed

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])


def forward(net, x):
    return net(x)


def step(batches, optimizer):
    with tf.GradientTape() as tape:
        outputs = Parallel(n_jobs=2)(delayed(forward)(model, x) for x in batches)  # GG105
        loss = tf.reduce_mean(tf.stack(outputs))
    return tape.gradient(loss, model.trainable_variables)
""",
}

GOOD: Examples = {
    "tape in the worker": """\
import tensorflow as tf
from joblib import Parallel, delayed


def gradient(value, k):
    variable = tf.Variable(value)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * k)
    return tape.gradient(loss, variable).numpy()


grads = Parallel(n_jobs=2)(delayed(gradient)([1.0, 2.0], k) for k in (1.0, 2.0))
""",
    "files under a tape": """\
import tensorflow as tf
from joblib import Parallel, delayed


def read(path):
    with open(path) as stream:
        return len(stream.read())


weights = tf.Variable([1.0, 2.0])
with tf.GradientTape() as tape:
    sizes = Parallel(n_jobs=2, prefer="threads")(delayed(read)(path) for path in ["a", "b"])
    loss = tf.reduce_sum(weights) * sum(sizes)
print(tape.gradient(loss, weights))
""",
}
