"""CuPy: nearly all of it runs on the GPU."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under

LIBRARY = Library(
    tops=("cupy", "cupyx"),
    framework=True,
    spelled={"cupy_backends.": "cupy."},
    rows=(
        Row("cupy.is_available cupy.cuda.is_available", "asks-gpu", framework="cupy"),
        Row("numba.cuda.is_available", "asks-gpu", framework="numba"),
        Row(
            "cupy.cuda.getDeviceCount cupy.cuda.runtime.getDeviceCount",
            "gpu-count",
            framework="cupy",
        ),
        Row(
            "cupy.random.default_rng cupy.random.RandomState",
            "generator",
            framework="cupy",
            gpu=True,
        ),
        Row("cupy.random.seed", "seed", framework="cupy", gpu=True),
        Row("cupy.cuda.Device", "thing", kind="gpu-device", gpu=True, argument=(0, "device")),
        Row(
            under(
                "cupy.cuda",
                "use Stream Event alloc_pinned_memory runtime.memGetInfo "
                "runtime.deviceSynchronize profiler.start",
            )
            + " cupy.show_config cupyx.empty_pinned cupyx.zeros_pinned",
            "gpu",
            framework="cupy",
        ),
        Row(
            under(
                "cupy.cuda",
                "get_device_id get_current_stream runtime.getDevice runtime.getDeviceProperties "
                "runtime.driverGetVersion",
            ),
            "gpu-driver",
            framework="cupy",
        ),
        Row("cupy.cuda.synchronize", "gpu", framework="cupy", flag="asks"),
        Row(
            "cupy.cuda.runtime.setDevice",
            "gpu",
            framework="cupy",
            argument=(0, "device"),
            flag="chooses",
        ),
        Row("cupy.cuda.* cupyx.*", "nothing"),
        Row("cupy.asnumpy", "array", framework="numpy"),
        Row(
            under(
                "cupy",
                "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_ "
                "complex64 complex128 ndarray newaxis pi e inf nan dtype get_array_module "
                "get_default_memory_pool get_default_pinned_memory_pool errstate "
                "finfo iinfo ElementwiseKernel RawKernel RawModule ReductionKernel fuse "
                "issubdtype isscalar can_cast promote_types min_scalar_type result_type shape "
                "ndim broadcast_shapes vectorize clear_memo",
            )
            + " cupy.testing.* cupy.fft.config.*",
            "nothing",
        ),
        Row(
            under("cupy", "split array_split meshgrid nonzero"),
            "gpu-array",
            framework="cupy",
            flag="several",
        ),
        Row("cupy.*", "gpu-array", framework="cupy"),
    ),
)
