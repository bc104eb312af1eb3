"""GG105: a gradient tape records around a parallel call whose tasks compute with TensorFlow."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG105",
    name="tape-around-workers",
    title="A gradient tape is open around a parallel call",
    severity=Severity.ERROR,
    happens=(
        "`tape.gradient(...)` returns `None`, with thread workers and with process workers. If "
        "part of the loss was computed in the parent, it returns the gradient of that part "
        "alone: wrong numbers instead of `None`, without an error."
    ),
    why=(
        "A tape records only what the thread that opened it computes. Other threads have their "
        "own tapes, and other processes work on copies."
    ),
    fix=(
        "Open the tape inside the worker function and return the gradients from it. Add them up "
        "in the parent. With `n_jobs=1` the outer tape works as it is."
    ),
    bad="""\
import tensorflow as tf
from joblib import Parallel, delayed


def loss(weight, factor):
    return tf.reduce_sum(weight * factor)


weight = tf.Variable([1.0, 2.0])
with tf.GradientTape() as tape:
    parts = Parallel(n_jobs=2, backend="threading")(delayed(loss)(weight, k) for k in (1.0, 2.0))
    total = tf.add_n(parts)
print(tape.gradient(total, weight))  # prints: None
""",
    good="""\
import tensorflow as tf
from joblib import Parallel, delayed


def gradient(weight, factor):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * factor)
    return tape.gradient(loss, weight)


weight = tf.Variable([1.0, 2.0])
parts = Parallel(n_jobs=2, backend="threading")(delayed(gradient)(weight, k) for k in (1.0, 2.0))
print(tf.add_n(parts).numpy())  # prints: [3. 3.]
""",
    lint=(
        "On the `Parallel(...)` call inside `with tf.GradientTape()`, for thread and process "
        "workers: an error where the tape is asked for the gradient of something that the tasks "
        "return, with respect to what they are given; a warning where that cannot be seen; info "
        "where the gradient is the one that a single thread would give (numbers, a stopped or "
        "frozen target)."
    ),
    runtime=(
        "When a parallel call sends work to other threads or processes, or the program starts a "
        "`threading.Thread`, while a tape records in the calling thread, and the tasks read "
        "trainable variables or tensors that the tape watches: info. It becomes an error once "
        "the tape returns `None` or a partial gradient because of it. If the gradient is the one "
        "that a single thread would give (inputs loaded in threads, a frozen or stopped target, "
        "a logged metric), it stays info or is not reported. Threads that were started before "
        "the tape opened aren't watched."
    ),
    part="lost",
    silence=(
        "If you need no gradient with respect to what the tasks compute. `with "
        "tape.stop_recording():` around the call says the same in code."
    ),
    links=(links.TF_TAPE, links.TF_AUTODIFF, links.JOBLIB_PARALLEL),
)
