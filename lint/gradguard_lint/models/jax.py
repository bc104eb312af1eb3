"""JAX: its first operation starts threads, and a forked worker waits for them forever.

Which operations start or need threads was observed on CPU and GPU.
"""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under
from gradguard_lint.words import words

READS = words(
    "item tolist tobytes block_until_ready copy_to_host_async devices is_deleted delete "
    "addressable_data is_ready on_device_size_in_bytes unsafe_buffer_pointer"
)
"""Methods of arrays that compute nothing new."""

SHAPED = {"zeros": 0, "ones": 0, "empty": 0, "full": 0, "normal": 1, "uniform": 1, "randint": 1}
"""Functions with a shape argument, and its position."""

LARGE = 10_000
"""The number of elements from which several threads compute, compiled or not."""

SHARED_OUT = words(
    "abs absolute add argmax cumsum divide dot einsum inv matmul max maximum mean min multiply "
    "normal randint relu sigmoid softmax sort square std subtract sum tensordot uniform var vdot "
    "where"
)
"""Functions for which that was observed, with 100 x 100 elements."""

OPERATORS = {
    "Add": "add",
    "BitAnd": "bitwise_and",
    "BitOr": "bitwise_or",
    "BitXor": "bitwise_xor",
    "Div": "divide",
    "Eq": "equal",
    "FloorDiv": "floor_divide",
    "Gt": "greater",
    "GtE": "greater_equal",
    "Invert": "bitwise_not",
    "Lt": "less",
    "LtE": "less_equal",
    "MatMult": "matmul",
    "Mod": "remainder",
    "Mult": "multiply",
    "NotEq": "not_equal",
    "Pow": "power",
    "Sub": "subtract",
    "USub": "negative",
}
"""The functions of operators, by their `ast` names."""

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
                "jax", "device_count local_device_count default_backend process_index process_count"
            ),
            "computes",
            framework="jax",
        ),
        Row("jax.devices", "jax-devices", framework="jax", argument=(0, "backend")),
        Row("jax.local_devices", "jax-devices", framework="jax", argument=(1, "backend")),
        Row("jax.default_device", "device-scope", argument=(0, "device")),
        Row("jax.device_put", "jax-put", framework="jax", argument=(1, "device")),
        Row(under("jax.numpy", "ones zeros full empty"), "computes", framework="jax", kind="array"),
        Row(
            under(
                "jax.numpy",
                "float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 "
                "uint64 bool_ complex64 complex128 ndarray newaxis pi e inf nan dtype shape ndim "
                "size result_type promote_types issubdtype iinfo finfo broadcast_shapes vectorize "
                "isscalar iscomplexobj isrealobj can_cast array_repr array_str iterable "
                "einsum_path printoptions set_printoptions get_printoptions frompyfunc ufunc",
            )
            + " jax.lax.stop_gradient jax.nn.initializers.*",
            "nothing",
        ),
        Row(
            "jax.numpy.* jax.random.* jax.nn.*",
            "computes",
            framework="jax",
            kind="array",
            flag="waits",
        ),
        Row("jax.lax.* jax.scipy.* jax.vjp jax.jvp", "computes", framework="jax", flag="waits"),
        Row("jax.*", "nothing"),
    ),
)
