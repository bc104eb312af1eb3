"""``tf.map_fn`` with ``parallel_iterations`` runs one by one outside a ``tf.function``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.effects import Program
from gradguard_lint.domain.values import Site
from gradguard_lint.engine.arguments import argument_node
from gradguard_lint.fixes.changes import Change, Fix, RemoveArgument, Replace, SetKeyword
from gradguard_lint.fixes.written import dotted, is_open, keyword
from gradguard_lint.reading.source import Module
from gradguard_lint.rules.base import Report

CODE = "GG403"

_GRAPH = {
    "placeholder",
    "Session",
    "InteractiveSession",
    "disable_eager_execution",
    "disable_v2_behavior",
}
"""Names that fail in eager mode, or disable it."""

_GONE = _GRAPH | {
    "app",
    "contrib",
    "flags",
    "get_variable",
    "global_variables_initializer",
    "layers",
    "logging",
    "to_float",
    "to_int32",
    "variable_scope",
    "ConfigProto",
}
"""Names that only TensorFlow 1, with its graph mode, has."""


def check(program: Program) -> Iterator[Report]:
    for effect in program.library_uses("map"):
        constants = effect.payload.values[0].constants()
        node = effect.site.node
        specs = _without_shape(effect.site) if isinstance(node, ast.Call) else []
        if specs:
            yield Report(
                effect.site,
                f"`{ast.unparse(specs[0])}` has no shape: it raises TypeError.",
                severity="error",
                case="shape",
                fix=_without_iterations(effect.site, specs),
            )
        elif "AUTOTUNE" in constants:
            yield Report(
                effect.site,
                "`parallel_iterations` takes a number: with `tf.data.AUTOTUNE` this call raises "
                "TypeError.",
                severity="error",
                case="autotune",
                fix=_without_iterations(effect.site),
            )
        elif (
            not effect.modes.compiled
            and effect.payload.certain
            and constants not in ([1], [None])
            and not _makes_graphs(effect.site.module)
            and not _may_be_traced(effect.site)
        ):
            yield Report(
                effect.site,
                "In eager mode `tf.map_fn` runs its iterations one after the other and ignores "
                "`parallel_iterations`.",
                fix=_without_iterations(effect.site),
            )


def _makes_graphs(module: Module) -> bool:
    """Whether `module` needs TensorFlow 1's graph mode."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in _GONE:
            package = dotted(module, node).rpartition(".")[0]
            first = package == "tensorflow.compat.v1" or ast.unparse(node.value) == "tf.compat.v1"
            if package == "tensorflow" or (first and node.attr in _GRAPH):
                return True
    return False


_TRACED_METHODS = {"call", "train_step", "test_step", "predict_step"}
"""Methods that Keras calls in a traced function."""


def _may_be_traced(site: Site) -> bool:
    """Whether the function around `site` is used as a value, which TensorFlow may trace."""
    around = _function_around(site.module.tree, site.node)
    if around is None:
        return False
    function, in_class = around
    if in_class and function.name in _TRACED_METHODS:
        return True
    called = {node.func for node in ast.walk(site.module.tree) if isinstance(node, ast.Call)}
    return any(
        (isinstance(node, ast.Name) and node.id == function.name)
        or (in_class and isinstance(node, ast.Attribute) and node.attr == function.name)
        for node in ast.walk(site.module.tree)
        if node not in called
    )


def _function_around(
    tree: ast.AST, wanted: ast.AST, in_class: bool = False
) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, bool] | None:
    """The outermost function around `wanted`, and whether it is a method."""
    for node in ast.iter_child_nodes(tree):
        if not any(part is wanted for part in ast.walk(node)):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return node, in_class
        return _function_around(node, wanted, isinstance(node, ast.ClassDef))
    return None


def _without_shape(site: Site) -> list[ast.Call]:
    """The ``TensorSpec`` objects of the call's output that have no shape."""
    call = site.node
    given = argument_node(call, 2, "dtype"), argument_node(call, 8, "fn_output_signature")
    return [
        spec
        for signature in given
        for spec in _leaves(signature)
        if isinstance(spec, ast.Call)
        and dotted(site.module, spec.func) == "tensorflow.TensorSpec"
        and not (spec.args or keyword(spec, "shape") or is_open(spec))
    ]


def _leaves(node: ast.expr | None) -> Iterator[ast.expr]:
    """The parts of `node` in its tuples, lists and dicts."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for item in node.elts:
            yield from _leaves(item)
    elif isinstance(node, ast.Dict):
        for item in node.values:
            yield from _leaves(item)
    elif node is not None:
        yield node


def _without_iterations(site: Site, specs: Sequence[ast.Call] = ()) -> Fix | None:
    """The call without `parallel_iterations`, which gives the same results."""
    call = site.node
    if not isinstance(call, ast.Call):
        return None
    changes: list[Change] = [SetKeyword(site.module, spec, "shape", "None") for spec in specs]
    done = ["leave the shape open"] if specs else []
    iterations = argument_node(call, 3, "parallel_iterations")
    if iterations is not None and iterations in call.args[:-1]:
        changes.append(Replace(site.module, iterations, "None"))
        done.append("let TensorFlow choose `parallel_iterations`")
    elif iterations is not None:
        name = 3 if iterations in call.args else "parallel_iterations"
        changes.append(RemoveArgument(site.module, call, name))
        done.append("leave `parallel_iterations` out")
    if not changes:
        return None
    # another expression may have side effects
    plain = iterations is None or isinstance(iterations, (ast.Name, ast.Attribute, ast.Constant))
    return Fix("safe" if plain else "unsafe", " and ".join(done), tuple(changes))
