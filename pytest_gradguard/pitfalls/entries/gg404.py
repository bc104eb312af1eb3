"""GG404: a Python loop collects gradients one example at a time."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG404",
    name="per-example-gradient-loop",
    title="Gradients are collected one example at a time",
    severity=Severity.INFO,
    happens=(
        "The numbers are right, but the loop is slow. For a small function and 256 examples on "
        "a CPU, `torch.func.vmap` was measured 100 times faster, and `tf.vectorized_map` in a "
        "`tf.function` several hundred times (outside a `tf.function` 4 times, `tape.jacobian` "
        "2 times)."
    ),
    why=(
        "Each iteration pays the full Python and framework overhead of a forward and backward "
        "pass for a single example, where one batched operation would do."
    ),
    fix=(
        "Use `tf.vectorized_map` in a `tf.function` for TensorFlow, and "
        "`torch.func.vmap(torch.func.grad(...))` for torch. If only the sum or the mean is "
        "needed, take one gradient of the batch's loss."
    ),
    cases={
        "tensorflow": (
            "Use `tf.vectorized_map` in a `tf.function`, or take one gradient of the batch's loss "
            "if you only need the sum or the mean."
        ),
        "torch": (
            "Use `torch.func.vmap(torch.func.grad(...))`, or take one gradient of the batch's loss "
            "if you only need the sum or the mean."
        ),
    },
    bad="""\
import tensorflow as tf

weight = tf.Variable([1.0, 2.0])
batch = tf.constant([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
gradients = []
for x in batch:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * x) ** 2
    gradients.append(tape.gradient(loss, weight))
print(tf.stack(gradients).numpy().tolist())  # prints: [[2.0, 0.0], [0.0, 16.0], [6.0, 6.0]]
""",
    good="""\
import tensorflow as tf

weight = tf.Variable([1.0, 2.0])
batch = tf.constant([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])


def gradient(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * x) ** 2
    return tape.gradient(loss, weight)


@tf.function
def gradients(batch):
    return tf.vectorized_map(gradient, batch)


print(gradients(batch).numpy().tolist())  # prints: [[2.0, 0.0], [0.0, 16.0], [6.0, 6.0]]
""",
    lint=(
        "On a Python loop over examples that opens a tape, or calls `backward()`, for each "
        "example to collect gradients."
    ),
    runtime=None,
    silence=(
        "It is hidden unless you ask for it. A loop is fine for few examples, or for examples "
        "of different shapes."
    ),
    links=(links.TORCH_FUNC, links.TF_VECTORIZED, links.TF_AUTODIFF),
)
