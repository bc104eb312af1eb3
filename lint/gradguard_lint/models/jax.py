"""JAX: its first operation starts threads, and in a forked worker others wait for them.

What starts them, and what waits, was seen on the CPU and on a GPU.
"""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under

LIBRARY = Library(
    tops=("jax",),
    framework=True,
    in_forks=True,
    rows=(
        Row(
            under(
                "jax",
                "jit vmap pmap grad value_and_grad jacfwd jacrev hessian checkpoint remat "
                "named_call custom_vjp custom_jvp",
            ),
            "identity",
        ),
        Row(
            under(
                "jax",
                "devices local_devices device_count local_device_count default_backend "
                "process_index process_count device_put",
            )
            + " "
            + under("jax.numpy", "ones zeros full empty"),
            "computes",
            framework="jax",
        ),
        Row(
            under(
                "jax.numpy",
                "float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 "
                "uint64 bool_ complex64 complex128 ndarray newaxis pi e inf nan dtype shape ndim "
                "size result_type promote_types issubdtype iinfo finfo broadcast_shapes vectorize",
            )
            + " jax.lax.stop_gradient jax.nn.initializers.*",
            "nothing",
        ),
        Row(
            "jax.numpy.* jax.lax.* jax.random.* jax.nn.* jax.scipy.* jax.vjp jax.jvp",
            "computes",
            framework="jax",
            flag="waits",
        ),
        Row("jax.*", "nothing"),
    ),
)
