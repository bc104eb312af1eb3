"""Run as a script: TensorFlow's tapes under the guard and without it; prints what came of it."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from typing import Any

import tensorflow as tf
from joblib import Parallel, delayed
from tensorflow.python import pywrap_tfe

from pytest_gradguard import GradGuardError, allow, guard, why_no_grad

PATCHED = [
    (tf.GradientTape, "gradient"),
    (tf.GradientTape, "jacobian"),
    (tf.GradientTape, "batch_jacobian"),
    (tf.GradientTape, "watch"),
    (tf.GradientTape, "_push_tape"),
    (tf.GradientTape, "_pop_tape"),
    (tf.autodiff.ForwardAccumulator, "jvp"),
    (tf.autodiff.ForwardAccumulator, "_push_accumulator"),
    (tf.autodiff.ForwardAccumulator, "_pop_accumulator"),
]


def names() -> list[Any]:
    return [vars(owner)[name] for owner, name in PATCHED]


def loss(weight: Any, factor: float) -> Any:
    return tf.reduce_sum(weight * factor)


def calls(weight: Any, backend: str = "threading") -> Any:
    return Parallel(2, backend=backend)(delayed(loss)(weight, k) for k in (1.0, 2.0))


def plain(value: Any) -> Any:
    return None if value is None else value.numpy().tolist()


def used(backend: str) -> list[Any]:
    """What tapes give in many ways of use."""
    weight, found = tf.Variable([1.0, 2.0]), []
    with tf.GradientTape(persistent=True) as tape:
        results = calls(weight, backend)
        total = tf.add_n(results) * tf.reduce_sum(weight)
        with tf.GradientTape() as inner:
            value = total * tf.reduce_sum(weight * weight)
        second = inner.gradient(value, weight)
        found.append(plain(tape.gradient(total, weight)))
    # Results are no sources of the user's tape, though one of ours follows them.
    found += [plain(one) for one in tape.gradient(total, [weight, *results])]
    found += [plain(second), plain(tape.gradient(second, weight))]
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(weight, backend))
        tape.reset()
        total *= tf.reduce_sum(weight)
    found.append(plain(tape.gradient(total, weight)))
    with tf.GradientTape() as tape:
        total = tf.add_n(calls(weight, backend))
        with tape.stop_recording():
            aside = total * tf.reduce_sum(weight)
        total *= tf.reduce_sum(weight)
    found += [plain(tape.gradient(total + aside, weight))]
    for wrong in (lambda: tape.gradient(total, weight), lambda: tape.gradient()):
        try:
            wrong()
        except (RuntimeError, TypeError) as error:
            found.append(str(error))
    with tf.autodiff.ForwardAccumulator(weight, tf.ones(2)) as accumulator:
        total = tf.add_n(calls(weight, backend)) * tf.reduce_sum(weight)
    found.append(plain(accumulator.jvp(total)))
    found.append(pywrap_tfe.TFE_Py_TapeSetIsEmpty())
    return found


def main() -> None:
    told: dict[str, Any] = {}
    before = names()
    with guard("record") as report, tf.GradientTape():
        loaded = Parallel(2)(delayed(lambda: "tensorflow" in sys.modules)() for _ in range(2))
    told["fresh workers"] = [loaded, [finding.code for finding in report.findings]]
    bare = {backend: used(backend) for backend in ("threading", "loky")}
    with guard("record") as report:
        guarded = {backend: used(backend) for backend in ("threading", "loky")}
    told["same"] = [guarded, bare]
    told["codes"] = sorted({finding.code for finding in report.findings} - {"GG107"})
    told["advice"] = [finding.fix for finding in report.findings if finding.code == "GG107"]
    told["put back"] = names() == before

    weight = tf.Variable([1.0, 2.0])
    with guard("error"):
        with tf.GradientTape() as tape:
            total = tf.add_n(calls(weight))
        try:
            tape.gradient(total, weight)
        except GradGuardError as error:
            told["raised"] = [finding.code for finding in error.findings]
            (confirmed,) = error.findings
            told["lanes"] = [step.lane for step in confirmed.trace]
            tensors = confirmed.details["tensors"]
            told["tensors"] = [[one["direction"], one["type"], one["shape"]] for one in tensors]
    with guard("record") as report, allow("GG105"), tf.GradientTape():
        calls(weight)
    told["allowed"] = [finding.code for finding in report.findings]
    with tf.GradientTape() as tape:
        with guard("record"):
            total = tf.add_n(calls(weight)) * tf.reduce_sum(weight)
        told["recording still"] = not pywrap_tfe.TFE_Py_TapeSetIsEmpty()
    told["ended inside"] = [plain(tape.gradient(total, weight)), names() == before]
    told["none records"] = pywrap_tfe.TFE_Py_TapeSetIsEmpty()

    with guard("record"):
        with tf.GradientTape() as tape:
            results = calls(weight)
            total = tf.add_n(results)
        tape.gradient(total, weight)
        told["why"] = [str(why_no_grad(one)) for one in (weight, tf.Variable([1.0]))]
        references = [weakref.ref(tape), *map(weakref.ref, results)]
        del tape, results, total
        gc.collect()
        told["kept alive"] = sum(reference() is not None for reference in references)

    with guard("record") as report:
        with tf.GradientTape() as tape:
            total = tf.add_n(calls(weight)) + tf.reduce_sum(weight)
            other = tf.reduce_sum(weight)
        tape.gradient(other, weight)  # it hangs on no result of the workers
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(weight) * tf.add_n(calls(tf.constant([1.0, 2.0])))
        tape.gradient(total, weight)  # the workers read no variable
    told["not confirmed"] = [finding.details["confirmed"] for finding in report.findings]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
