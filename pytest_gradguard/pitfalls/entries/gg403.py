"""GG403: tf.map_fn is not parallel outside a tf.function."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG403",
    name="map-fn-not-parallel",
    title="tf.map_fn with parallel_iterations runs one by one in eager mode",
    severity=Severity.WARNING,
    happens=(
        "Outside a `tf.function`, `parallel_iterations` has no effect: the examples run one "
        "after the other, no faster than a Python loop, and the only sign is a warning in the "
        "log. `parallel_iterations=tf.data.AUTOTUNE` raises `TypeError`, and so does a "
        "`tf.TensorSpec(dtype=...)` without a shape as `fn_output_signature`."
    ),
    why=(
        "Eager mode has no graph whose iterations could overlap. Inside a `tf.function` the "
        "loop is part of a graph, where the option works. AUTOTUNE is a value for `tf.data` "
        "only."
    ),
    fix=(
        "Use `tf.vectorized_map` inside a `tf.function`: it computes the whole batch with "
        "batched operations. If you need `map_fn`, put it into a `tf.function`."
    ),
    cases={
        "autotune": "Pass a number, or leave `parallel_iterations` out.",
        "shape": "Give the `TensorSpec` a shape; `shape=None` leaves it open.",
    },
    bad="""\
import tensorflow as tf


def square(x):
    return x * x


values = tf.constant([1.0, 2.0, 3.0])
print(tf.map_fn(square, values, parallel_iterations=10).numpy())  # prints: [1. 4. 9.]
""",
    good="""\
import tensorflow as tf


def square(x):
    return x * x


@tf.function
def squares(values):
    return tf.vectorized_map(square, values)


values = tf.constant([1.0, 2.0, 3.0])
print(squares(values).numpy())  # prints: [1. 4. 9.]
""",
    lint=(
        "On `tf.map_fn(..., parallel_iterations=...)` outside a `tf.function`; an error for "
        "`parallel_iterations=tf.data.AUTOTUNE`, and for a `tf.TensorSpec` without a shape."
    ),
    runtime=None,
    silence="If the code runs inside a `tf.function` that the linter does not see.",
    links=(links.TF_MAP, links.TF_VECTORIZED, links.TF_FUNCTION),
)
