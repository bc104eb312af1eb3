"""CuPy: nearly all of it runs on the GPU."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row


def _under(module: str, names: str) -> str:
    return " ".join(f"{module}.{name}" for name in names.split())


LIBRARY = Library(
    tops=("cupy", "cupyx"),
    framework=True,
    spelled={"cupy_backends.": "cupy."},
    rows=(
        Row("cupy.is_available cupy.cuda.is_available numba.cuda.is_available", "asks-gpu"),
        Row("cupy.cuda.getDeviceCount cupy.cuda.runtime.getDeviceCount", "gpu-count"),
        Row("cupy.random.default_rng cupy.random.RandomState", "generator"),
        Row("cupy.random.seed", "seed", framework="cupy"),
        Row("cupy.cuda.Device", "thing", kind="cupy-device", gpu=True, argument=(0, "device")),
        Row(
            _under("cupy.cuda", "use synchronize Stream Event")
            + " cupy.cuda.runtime.deviceSynchronize",
            "gpu",
            framework="cupy",
        ),
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
            _under(
                "cupy",
                "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_ "
                "complex64 complex128 ndarray newaxis pi e inf nan dtype get_array_module "
                "show_config get_default_memory_pool get_default_pinned_memory_pool errstate "
                "finfo iinfo ElementwiseKernel RawKernel ReductionKernel fuse issubdtype "
                "clear_memo",
            ),
            "nothing",
        ),
        Row(
            _under("cupy", "split array_split meshgrid nonzero"),
            "gpu-array",
            framework="cupy",
            flag="several",
        ),
        Row("cupy.*", "gpu-array", framework="cupy"),
    ),
)
