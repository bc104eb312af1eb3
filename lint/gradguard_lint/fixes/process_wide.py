"""Settings of libraries that hold for a whole process: each fresh one begins without them."""

from __future__ import annotations

import ast
import re

from gradguard_lint.engine.tree import last_name
from gradguard_lint.fixes.written import dotted
from gradguard_lint.reading.source import Module
from gradguard_lint.words import words

_FRAMEWORKS = words("torch numpy tensorflow keras jax")
_SETTINGS = words(
    "set_default_dtype set_default_device set_default_tensor_type set_float32_matmul_precision "
    "use_deterministic_algorithms set_flush_denormal set_grad_enabled set_floatx set_policy "
    "set_global_policy set_image_data_format disable_eager_execution enable_op_determinism seterr "
    "run_functions_eagerly"
)
_SEED = re.compile(r"(?:\A|_)seed(?:\Z|_)|\Aset_(?:rng_)?state\Z")


def sets(module: Module, code: ast.AST, *, draws: bool) -> bool:
    """Whether `code` changes a setting of a library for the whole process; where the worker
    `draws`, generators are some."""
    passing = {id(it.context_expr) for it in ast.walk(code) if isinstance(it, ast.withitem)}
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and id(node) not in passing:
            if last_name(node.func) in _SETTINGS or (draws and is_seed(node)):
                return True
            if dotted(module, node.func) == "jax.config.update":
                return True
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            top = dotted(module, node).partition(".")[0]
            if top in _FRAMEWORKS and node.attr != "benchmark":
                return True
    return False


def is_seed(node: ast.AST) -> bool:
    """Whether `node` is a call that seeds generators of the process, and no object made there."""
    return (
        isinstance(node, ast.Call)
        and _SEED.search(last_name(node.func)) is not None
        and not any(isinstance(part, ast.Call) for part in ast.walk(node.func))
    )
