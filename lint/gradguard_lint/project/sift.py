"""The byte search: which files may have a pitfall at all.

A pitfall needs a way to start workers *and* a framework, or one of a few marks that stand
alone. Nearly every file has neither, and costs no more than this search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

_FRAMEWORK = re.compile(
    rb"^(?:\xef\xbb\xbf)?[ \t]*(?:(?:import|from)[ \t]+|import[ \t][^\n#]*,[ \t]*)"
    rb"(?:torch|tensorflow|keras|tf_keras|cupy|torchvision|pytorch_lightning|lightning"
    rb"|skorch|timm|botorch|gpytorch)\b"
    rb"|;[ \t]*(?:import|from)[ \t]+(?:torch|tensorflow|keras|cupy)\b",
    re.MULTILINE,
)
_PARALLEL = re.compile(
    rb"\bParallel\b|\bdelayed\b|\bPool\b|\bThreadPool\b|PoolExecutor\b|get_reusable_executor"
    rb"|\bClient\b"
)
_STARTER = re.compile(
    rb"\bjoblib\b|\bmultiprocessing\b|\bconcurrent\b|\bdask\b|\bdistributed\b|\bloky\b"
    rb"|\bParallel[ \t]*\(|\bdelayed[ \t]*\(|@delayed|multiprocess\b"
    rb"|sklearn\.utils\.(?:parallel|fixes)"
)
_ALONE = re.compile(
    rb"wrappers\.scikit_learn|wrappers[ \t]+import[ \t(]+scikit_learn"
    rb"|backend[ \t]*=[ \t]*[\"']dask[\"']|=[ \t]*[\"']dask[\"'][\s\S]*?\bbackend[ \t]*="
)
_MAP_FN = re.compile(rb"\bmap_fn\b")
_MEMORY = re.compile(rb"\bMemory\b")
_SEARCH = re.compile(rb"\bn_jobs\b")
_GPU_ESTIMATOR = re.compile(
    rb"\b(?:skorch|xgboost|lightgbm|catboost|cuml)\b[\s\S]*?(?:cuda|gpu|GPU|cuml)"
)
_RANDOM = re.compile(rb"np\.random\.|numpy\.random|from numpy import random")
_FORK = re.compile(rb"\bPool\b|ProcessPoolExecutor|[\"']multiprocessing[\"']")
_GENERATOR = re.compile(rb"default_rng|RandomState[ \t]*\(|\bGenerator[ \t]*\(|random\.Random\b")
_LOOP_GRADIENT = re.compile(rb"GradientTape|\.backward\(|autograd\.grad")
_DASK_ARRAY = re.compile(rb"dask\.array|from[ \t]+dask[ \t]+import")
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n;#]+)"
    rb"|import[ \t]+([^\n;#]+))",
    re.MULTILINE,
)


Follow = Callable[[str, str], "tuple[str, bytes] | None"]
"""``follow(name, path)``: the file and the bytes of what the module at `path` imports as `name`."""


def imports(data: bytes) -> list[str]:
    """The dotted names that the imports of `data` mention, relative ones with their dots."""
    found: list[str] = []
    for base, names, plain in _IMPORT.findall(data):
        if plain:
            found.extend(
                part.split(b" as ")[0].strip().decode("utf-8", "replace")
                for part in plain.split(b",")
            )
            continue
        start = base.decode("utf-8", "replace")
        found.append(start)
        for part in names.strip(b"()").replace(b"\\", b"").split(b","):
            name = part.split(b" as ")[0].strip().decode("utf-8", "replace")
            if name.isidentifier():
                found.append(start + name if start.endswith(".") else f"{start}.{name}")
    return found


class Sift:
    """Decides, from bytes alone, whether a file is worth reading as a program."""

    def __init__(self, codes: Collection[str], wrappers: Collection[str] = ()) -> None:
        self.info = "GG404" in codes
        names = [re.escape(name.rpartition(".")[2].encode()) for name in wrappers]
        self.wrappers = re.compile(rb"\b(?:" + b"|".join(names) + rb")\b") if names else None

    def keeps(self, data: bytes, path: str, follow: Follow) -> bool:
        """Whether `data` may have a pitfall; `follow` finds the modules that it imports."""
        if _ALONE.search(data):
            return True
        framework = _FRAMEWORK.search(data) is not None
        if framework and self._with_framework(data):
            return True
        parallel = self._starts_workers(data)
        if framework and parallel:
            return True
        if framework:
            return self._imported(data, path, follow, self._is_wrapper, 1, set())
        if not parallel:
            return _SEARCH.search(data) is not None and _GPU_ESTIMATOR.search(data) is not None
        if _RANDOM.search(data) and _FORK.search(data):
            return True
        if _GENERATOR.search(data):
            return True
        return self._imported(data, path, follow, _uses_framework, 3, set())

    def _starts_workers(self, data: bytes) -> bool:
        if _PARALLEL.search(data) is not None and _STARTER.search(data) is not None:
            return True
        return self.wrappers is not None and self.wrappers.search(data) is not None

    def _is_wrapper(self, data: bytes) -> bool:
        """Whether a module starts workers for others: with a framework it is checked itself."""
        return self._starts_workers(data) and not _uses_framework(data)

    def _with_framework(self, data: bytes) -> bool:
        if _MAP_FN.search(data) and b"parallel_iterations" in data:
            return True
        if _MEMORY.search(data) and b"joblib" in data:
            return True
        if _DASK_ARRAY.search(data):
            return True
        if _SEARCH.search(data) and _GPU_ESTIMATOR.search(data):
            return True
        return self.info and _LOOP_GRADIENT.search(data) is not None

    def _imported(
        self,
        data: bytes,
        path: str,
        follow: Follow,
        wanted: Callable[[bytes], bool],
        depth: int,
        seen: set[str],
    ) -> bool:
        """Whether a module of the project that `data` imports is `wanted`."""
        for name in imports(data):
            other = follow(name, path)
            if other is None or other[0] in seen:
                continue
            seen.add(other[0])
            if wanted(other[1]):
                return True
            if depth > 1 and self._imported(other[1], other[0], follow, wanted, depth - 1, seen):
                return True
        return False


def _uses_framework(data: bytes) -> bool:
    return _FRAMEWORK.search(data) is not None
