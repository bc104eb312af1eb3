"""What an expression is worth."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from typing import Any

from gradguard_lint.semantics import library
from gradguard_lint.semantics.attributes import Attributes
from gradguard_lint.semantics.frames import Frame
from gradguard_lint.semantics.truth import compare, truth_of
from gradguard_lint.semantics.values import (
    GRADIENT,
    NOTHING,
    NUMBER,
    UNKNOWN,
    Atom,
    Choice,
    Const,
    External,
    Function,
    Items,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    items,
    join,
    of,
    sequence,
    unknown,
)
from gradguard_lint.semantics.values import (
    inner as inner_atoms,
)
from gradguard_lint.words import words

BUILTINS = words(
    "print len range enumerate zip map filter list tuple set dict sorted reversed sum min max "
    "abs float int str bool bytes getattr setattr hasattr isinstance issubclass type super "
    "iter next open any all round id repr vars object property staticmethod classmethod "
    "frozenset slice input callable divmod pow format"
)

PURE = {"split", "lower", "upper", "strip", "startswith", "endswith", "format", "replace"}


class Expressions(Attributes):
    """Evaluation of expressions; calls are in `calls`."""

    def eval(self, frame: Frame, node: ast.AST | None) -> Value:
        """What `node` may be."""
        if node is None:
            return NOTHING
        self.tick()
        method: Callable[[Frame, Any], Value] | None = getattr(
            self, "on_" + node.__class__.__name__, None
        )
        if method is None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.eval(frame, child)
            return UNKNOWN
        return method(frame, node)

    # -- names and constants --------------------------------------------------------------------

    def on_Constant(self, frame: Frame, node: ast.Constant) -> Value:
        if node.value is ...:
            return UNKNOWN
        return constant(node.value)

    def on_JoinedStr(self, frame: Frame, node: ast.JoinedStr) -> Value:
        text = ""
        whole = True
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                value = self.eval(frame, part.value)
                if isinstance(value.only, Const) and part.format_spec is None:
                    text += str(value.constant)
                else:
                    whole = False
                    text += "{}"
        return constant(text) if whole else of(Unknown(("text", text)))

    def on_Name(self, frame: Frame, node: ast.Name) -> Value:
        found = self.lookup(frame, node.id)
        if found is None:
            if node.id in BUILTINS:
                return of(External("builtins." + node.id))
            if node.id in ("__file__", "__doc__"):
                return UNKNOWN
            star = self.star_import(frame, node.id)
            return star if star is not None else UNKNOWN
        value, home = found
        if self.worker is not None and home.born != self.worker.ident:
            return self.captured(frame, node, node.id, value, home)
        return value

    def star_import(self, frame: Frame, name: str) -> Value | None:
        """`name`, where a ``from m import *`` may give it."""
        return None

    def captured(self, frame: Frame, node: ast.AST, name: str, value: Value, home: Frame) -> Value:
        """`value` from outside the worker, as the worker sees it."""
        if any(isinstance(atom, (Tensor, Thing)) for atom in inner_atoms(value, 2)):
            self.effect(
                frame,
                "capture",
                node,
                name,
                value=value,
                home=home.module.name,
                is_global=home.parent is None,
            )
        if self.in_process_worker:
            return self.arrived(value)
        return value

    def on_NamedExpr(self, frame: Frame, node: ast.NamedExpr) -> Value:
        value = self.eval(frame, node.value)
        self.write(frame, node.target.id, value)
        return value

    def on_Starred(self, frame: Frame, node: ast.Starred) -> Value:
        return self.eval(frame, node.value)

    def on_Await(self, frame: Frame, node: ast.Await) -> Value:
        return self.eval(frame, node.value)

    # -- containers -----------------------------------------------------------------------------

    def _display(self, frame: Frame, kind: str, nodes: list[ast.expr]) -> Value:
        if any(isinstance(item, ast.Starred) for item in nodes):
            parts = []
            for item in nodes:
                value = self.eval(frame, item)
                parts.append(self.element(value) if isinstance(item, ast.Starred) else value)
            return sequence(join(parts), kind)
        if len(nodes) > 64:
            return sequence(join(self.eval(frame, item) for item in nodes[:64]), kind)
        return items(kind, [self.eval(frame, item) for item in nodes])

    def on_List(self, frame: Frame, node: ast.List) -> Value:
        return self._display(frame, "list", node.elts)

    def on_Tuple(self, frame: Frame, node: ast.Tuple) -> Value:
        return self._display(frame, "tuple", node.elts)

    def on_Set(self, frame: Frame, node: ast.Set) -> Value:
        return self._display(frame, "set", node.elts)

    def on_Dict(self, frame: Frame, node: ast.Dict) -> Value:
        entries: dict[Hashable, Value] = {}
        rest: list[Value] = []
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.eval(frame, item)
            if key is None:
                for atom in value.of(Table):
                    entries.update(atom.entries)
                if not any(value.of(Table)):
                    rest.append(UNKNOWN)
                continue
            name = self.eval(frame, key)
            if isinstance(name.only, Const):
                entries[name.constant] = value
            else:
                rest.append(value)
        return of(Table(tuple(entries.items()), join(rest) if rest else UNKNOWN))

    def element(self, value: Value) -> Value:
        """What iterating `value` gives."""
        found = []
        for choice in value.choices:
            atom = choice.atom
            if isinstance(atom, Items):
                found.append(atom.element)
            elif isinstance(atom, Table):
                names = [constant(key) for key, _ in atom.entries]
                if atom.keys is not None:
                    names.append(atom.keys)
                found.append(join(names) if names else UNKNOWN)
            elif isinstance(atom, Tensor):
                found.append(of(library.derived(self, atom)))
            elif isinstance(atom, Const) and isinstance(atom.value, (str, type(None))):
                found.append(UNKNOWN)
            else:
                key = atom.key if isinstance(atom, Unknown) else None
                found.append(unknown(("item", key)) if key is not None else UNKNOWN)
        return join(found) if found else UNKNOWN

    def on_ListComp(self, frame: Frame, node: ast.ListComp) -> Value:
        return self._comprehension(frame, node, "list")

    def on_SetComp(self, frame: Frame, node: ast.SetComp) -> Value:
        return self._comprehension(frame, node, "set")

    def on_GeneratorExp(self, frame: Frame, node: ast.GeneratorExp) -> Value:
        return self._comprehension(frame, node, "generator")

    def on_DictComp(self, frame: Frame, node: ast.DictComp) -> Value:
        inner = self._scope(frame, node.generators)
        key = self.eval(inner, node.key)
        value = self.eval(inner, node.value)
        return of(Table((), value, key))

    def _scope(self, frame: Frame, generators: list[ast.comprehension]) -> Frame:
        inner = Frame(self.new_ident(), frame.module, frame, frame.function, born=frame.born)
        inner.outer = dict(frame.outer)
        inner.self_class = frame.self_class
        for index, generator in enumerate(generators):
            source = self.eval(frame if index == 0 else inner, generator.iter)
            self.assign(inner, generator.target, self.element(source))
            names = frozenset(
                item.id for item in ast.walk(generator.target) if isinstance(item, ast.Name)
            )
            inner.loop_names.append(names)
            for test in generator.ifs:
                self.eval(inner, test)
        return inner

    def _comprehension(
        self, frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, kind: str
    ) -> Value:
        first = node.generators[0]
        source = self.eval(frame, first.iter) if len(node.generators) == 1 else UNKNOWN
        only = source.only
        if (
            isinstance(only, Items)
            and only.items is not None
            and 1 < len(only.items) <= 6
            and not first.ifs
        ):
            results = []
            for item in only.items:
                inner = Frame(
                    self.new_ident(), frame.module, frame, frame.function, born=frame.born
                )
                inner.outer = dict(frame.outer)
                inner.self_class = frame.self_class
                self.assign(inner, first.target, item)
                inner.loop_names.append(
                    frozenset(
                        name.id for name in ast.walk(first.target) if isinstance(name, ast.Name)
                    )
                )
                results.append(self.eval(inner, node.elt))
            return items(kind, results)
        inner = self._scope(frame, node.generators)
        count = len(self.program.effects)
        element = self.eval(inner, node.elt)
        if any(
            effect.kind in ("tape-gradient", "backward") for effect in self.program.effects[count:]
        ) and any(
            isinstance(part, Tensor) and part.ident == GRADIENT for part in inner_atoms(element)
        ):
            self.effect(
                frame, "gradient-collected", node.elt, "one gradient", loop=self.site(frame, node)
            )
        return sequence(element, kind)

    def assign(self, frame: Frame, target: ast.expr, value: Value) -> None:
        """Bind `target` to `value`; defined with the statements."""
        raise NotImplementedError

    # -- operators ------------------------------------------------------------------------------

    def on_BinOp(self, frame: Frame, node: ast.BinOp) -> Value:
        left = self.eval(frame, node.left)
        right = self.eval(frame, node.right)
        return self.operate(frame, node, node.op, left, right)

    def operate(
        self, frame: Frame, node: ast.AST, op: ast.operator, left: Value, right: Value
    ) -> Value:
        """``left op right``."""
        tensor = library.operation(
            self, frame, node, [left, right], matmul=isinstance(op, ast.MatMult)
        )
        if tensor is not None:
            return tensor
        if any(left.things("number")) or any(right.things("number")):
            return NUMBER
        if isinstance(left.only, Const) and isinstance(right.only, Const):
            a, b = left.only.value, right.only.value
            if isinstance(op, ast.Add) and isinstance(a, str) and isinstance(b, str):
                return constant(a + b)
            if isinstance(a, (int, float)) and isinstance(b, (int, float)):
                try:
                    if isinstance(op, ast.Add):
                        return constant(a + b)
                    if isinstance(op, ast.Sub):
                        return constant(a - b)
                    if isinstance(op, ast.Mult):
                        return constant(a * b)
                except (OverflowError, ValueError):
                    return UNKNOWN
        if (
            isinstance(op, ast.Add)
            and isinstance(left.only, Const)
            and isinstance(left.constant, str)
        ):
            return of(Unknown(("text", left.constant + "{}")))
        if isinstance(op, ast.Mod) and isinstance(left.constant, str):
            return of(Unknown(("text", left.constant.split("%")[0] + "{}")))
        sequences = [
            atom for value in (left, right) for atom in value.atoms if isinstance(atom, Items)
        ]
        if sequences and isinstance(op, (ast.Add, ast.Mult)):
            return sequence(join(atom.element for atom in sequences), sequences[0].kind)
        return UNKNOWN

    def on_UnaryOp(self, frame: Frame, node: ast.UnaryOp) -> Value:
        value = self.eval(frame, node.operand)
        if isinstance(node.op, ast.Not):
            return Value(
                tuple(Choice(self._negated(choice.atom), choice.when) for choice in value.choices)
            )
        if isinstance(node.op, ast.USub) and isinstance(value.constant, (int, float)):
            return constant(-value.constant)
        tensor = library.operation(self, frame, node, [value])
        return tensor if tensor is not None else UNKNOWN

    def _negated(self, atom: Atom) -> Atom:
        truth = truth_of(atom)
        if truth is not None:
            return Const(not truth, "bool")
        if isinstance(atom, Unknown) and atom.key is not None:
            return Unknown(("not", atom.key))
        return Unknown()

    def on_BoolOp(self, frame: Frame, node: ast.BoolOp) -> Value:
        stop = isinstance(node.op, ast.Or)
        found: list[Value] = []
        saved = dict(self.assumed)
        for index, part in enumerate(node.values):
            value = self.eval(frame, part)
            last = index == len(node.values) - 1
            truths = {truth_of(atom) for atom in value.atoms}
            if truths == {stop}:
                found.append(value)
                break
            if last:
                found.append(value)
            elif truths != {not stop}:
                kept = tuple(
                    choice for choice in value.choices if truth_of(choice.atom) is not (not stop)
                )
                found.append(Value(kept))
                only = value.only
                if isinstance(only, Unknown):
                    self.assume(only.key, not stop)
        self.assumed = saved
        return join(found) if found else UNKNOWN

    def on_Compare(self, frame: Frame, node: ast.Compare) -> Value:
        left = self.eval(frame, node.left)
        rights = [self.eval(frame, item) for item in node.comparators]
        if len(rights) != 1:
            return UNKNOWN
        right, op = rights[0], node.ops[0]
        tensor = None
        if not isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            tensor = library.operation(self, frame, node, [left, right], smooth=False)
        if tensor is not None:
            return tensor
        choices = [
            Choice(compare(op, a.atom, b.atom), a.when | b.when)
            for a in left.choices
            for b in right.choices
        ]
        return join([Value(tuple(choices[:16]))])

    def on_Slice(self, frame: Frame, node: ast.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.eval(frame, part)
        return UNKNOWN

    def on_Lambda(self, frame: Frame, node: ast.Lambda) -> Value:
        frame.shared = True
        defaults = tuple(self.eval(frame, item) for item in node.args.defaults)
        kw_defaults = tuple(
            self.eval(frame, item) if item is not None else None for item in node.args.kw_defaults
        )
        return of(Function(node, frame.module, frame, None, defaults, kw_defaults))

    def on_Yield(self, frame: Frame, node: ast.Yield) -> Value:
        frame.yields.append(self.eval(frame, node.value))
        return UNKNOWN

    def on_YieldFrom(self, frame: Frame, node: ast.YieldFrom) -> Value:
        frame.yields.append(self.element(self.eval(frame, node.value)))
        return UNKNOWN
