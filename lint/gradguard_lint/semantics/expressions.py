"""What an expression is worth."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from typing import Any

from gradguard_lint.semantics import library
from gradguard_lint.semantics.core import GPU_FLAGS, GPU_PRESENT, Args, Core
from gradguard_lint.semantics.frames import Frame
from gradguard_lint.semantics.values import (
    GRADIENT,
    NONE,
    NOTHING,
    NUMBER,
    UNKNOWN,
    Atom,
    Bound,
    Choice,
    Class,
    Const,
    Delayed,
    External,
    Function,
    Instance,
    Items,
    Key,
    Method,
    Partial,
    ProjectModule,
    Table,
    TaskCall,
    Tensor,
    Thing,
    Unknown,
    Value,
    constant,
    guarded,
    inner as inner_atoms,
    items,
    join,
    of,
    sequence,
    unknown,
)

BUILTINS = frozenset(
    "print len range enumerate zip map filter list tuple set dict sorted reversed sum min max abs "
    "float int str bool bytes getattr setattr hasattr isinstance issubclass type super iter next "
    "open any all round id repr vars object property staticmethod classmethod frozenset slice "
    "input callable divmod pow format".split()
)

PURE = {"split", "lower", "upper", "strip", "startswith", "endswith", "format", "replace"}


class Expressions(Core):
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
                frame, "capture", node, name, value=value, home=home.module.name,
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
            elif isinstance(atom, Thing):
                found.append(library.iterate(self, atom))
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
        inner = Frame(
            self.new_ident(), frame.module, frame, frame.function, born=frame.born
        )
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
            isinstance(only, Items) and only.items is not None and 1 < len(only.items) <= 6
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
                inner.loop_names.append(frozenset(
                    name.id for name in ast.walk(first.target) if isinstance(name, ast.Name)
                ))
                results.append(self.eval(inner, node.elt))
            return items(kind, results)
        inner = self._scope(frame, node.generators)
        count = len(self.program.effects)
        element = self.eval(inner, node.elt)
        if any(
            effect.kind in ("tape-gradient", "backward")
            for effect in self.program.effects[count:]
        ) and any(
            isinstance(part, Tensor) and part.ident == GRADIENT for part in inner_atoms(element)
        ):
            self.effect(frame, "gradient-collected", node.elt, "one gradient",
                        loop=self.site(frame, node))
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
        tensor = library.operation(self, frame, node, [left, right], matmul=isinstance(
            op, ast.MatMult))
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
        if isinstance(op, ast.Add) and isinstance(left.only, Const) and isinstance(
            left.constant, str
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
            return Value(tuple(
                Choice(self._negated(choice.atom), choice.when) for choice in value.choices
            ))
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
        choices = []
        for a in left.choices:
            for b in right.choices:
                choices.append(Choice(compare(op, a.atom, b.atom), a.when | b.when))
        return join([Value(tuple(choices[:16]))])

    def on_IfExp(self, frame: Frame, node: ast.IfExp) -> Value:
        test = self.eval(frame, node.test)
        found = []
        for truth, branch in ((True, node.body), (False, node.orelse)):
            saved = dict(self.assumed)
            if self.enter_branch(frame, node.test, test, truth):
                value = self.eval(frame, branch)
                found.append(guarded(value, self.condition(test, truth)))
            self.assumed = saved
        return join(found) if found else UNKNOWN

    def condition(self, test: Value, truth: bool) -> frozenset[tuple[Key, bool]]:
        """The assumptions that `test` having `truth` amounts to."""
        worlds: list[frozenset[tuple[Key, bool]]] = []
        ruled_out: set[tuple[Key, bool]] = set()
        for choice in test.choices:
            atom = choice.atom
            value = truth_of(atom)
            if value is not None and value is not truth:
                if len(choice.when) == 1:
                    ruled_out |= {(key, not wanted) for key, wanted in choice.when}
            elif isinstance(atom, Unknown) and atom.key is not None:
                worlds.append(choice.when | {plain_condition(atom.key, truth)})
            else:
                worlds.append(choice.when)
        if not worlds:
            return NONE
        common = frozenset.intersection(*worlds)
        return common | {item for item in ruled_out if (item[0], not item[1]) not in common}

    def enter_branch(self, frame: Frame, node: ast.expr, test: Value, truth: bool) -> bool:
        """Assume that `test` has `truth`; False where it cannot."""
        if not any(truth_of(atom) in (truth, None) for atom in test.atoms):
            return False
        for key, wanted in self.condition(test, truth):
            self.assume(key, wanted)
        self.refine(frame, node, truth)
        return True

    def refine(self, frame: Frame, node: ast.expr, truth: bool) -> None:
        """What the parts of a test tell by themselves."""
        if denies_gpu(node, truth):
            self.assume(GPU_PRESENT, False)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.refine(frame, node.operand, not truth)
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And) is truth:
            for part in node.values:
                value = self.eval(frame, part)
                self.enter_branch(frame, part, value, truth)

    # -- attributes and items -------------------------------------------------------------------

    def on_Attribute(self, frame: Frame, node: ast.Attribute) -> Value:
        receiver = self.eval(frame, node.value)
        return self.attribute(frame, node, receiver, node.attr)

    def attribute(self, frame: Frame, node: ast.AST, receiver: Value, name: str) -> Value:
        """``receiver.name``."""
        return receiver.map(lambda atom: self._attribute(frame, node, atom, name))

    def _attribute(self, frame: Frame, node: ast.AST, atom: Atom, name: str) -> Value:
        if isinstance(atom, Instance):
            return self.instance_attribute(frame, node, atom, name)
        if isinstance(atom, Class):
            return self.class_attribute(frame, atom, name)
        if isinstance(atom, ProjectModule):
            return self.module_attribute(frame, node, atom.name, name)
        if isinstance(atom, External):
            return library.external_attribute(self, frame, node, atom, name)
        if isinstance(atom, (Tensor, Thing)):
            return library.attribute(self, frame, node, atom, name)
        if isinstance(atom, Unknown):
            base = atom.key if atom.key is not None else ("node", id(node))
            if name == "grad":
                return of(Tensor("torch", "none", False, self.worker_ident, GRADIENT))
            key = ("attr", base, name)
            fixed = self.store.get((0, str(key)))
            return fixed if fixed is not None else unknown(key)
        if isinstance(atom, Function) and name in ("__name__", "__doc__"):
            return UNKNOWN
        if isinstance(atom, Items) and name in ("values", "indices") and any(
            atom.element.tensors()
        ):
            return atom.element
        return of(Method(atom, name))

    def instance_attribute(
        self, frame: Frame, node: ast.AST, atom: Instance, name: str
    ) -> Value:
        value = self.read(atom.ident, name)
        if value is not None:
            if self.worker is not None and atom.born != self.worker.ident:
                if any(isinstance(item, (Tensor, Thing)) for item in value.atoms):
                    self.effect(
                        frame, "capture", node, f"self.{name}", value=value,
                        home="", is_global=False,
                    )
                if self.in_process_worker:
                    return self.arrived(value)
            return value
        found = self.find_in_class(atom.cls, name)
        if found is not None:
            return self.bind(frame, node, found, atom)
        return library.inherited_attribute(self, frame, node, atom, name)

    def find_in_class(self, cls: Class, name: str, depth: int = 6) -> Value | None:
        """`name` in `cls` or its bases in the project."""
        value = self.stored(cls.body.ident, name)
        if value is not None:
            return value
        if depth:
            for base in cls.bases:
                if isinstance(base, Class):
                    value = self.find_in_class(base, name, depth - 1)
                    if value is not None:
                        return value
        return None

    def bind(self, frame: Frame, node: ast.AST, value: Value, receiver: Atom) -> Value:
        """A class attribute seen through an object."""

        def change(atom: Atom) -> Value:
            if isinstance(atom, Function):
                if "static" in atom.marks:
                    return of(atom)
                if "class" in atom.marks and isinstance(receiver, Instance):
                    return of(Bound(atom, receiver.cls))
                if "property" in atom.marks:
                    return self.call(frame, node, of(Bound(atom, receiver)), Args())
                return of(Bound(atom, receiver))
            return of(atom)

        return value.map(change)

    def class_attribute(self, frame: Frame, cls: Class, name: str) -> Value:
        value = self.find_in_class(cls, name)
        if value is None:
            return UNKNOWN
        return value.map(
            lambda atom: of(Bound(atom, cls))
            if isinstance(atom, Function) and "class" in atom.marks
            else of(atom)
        )

    def module_attribute(self, frame: Frame, node: ast.AST, module: str, name: str) -> Value:
        """`name` of a module of the project; defined with the imports."""
        raise NotImplementedError

    def call(self, frame: Frame, node: ast.AST, function: Value, args: Args) -> Value:
        """Call `function`; defined with the calls."""
        raise NotImplementedError

    def on_Subscript(self, frame: Frame, node: ast.Subscript) -> Value:
        value = self.eval(frame, node.value)
        index = self.eval(frame, node.slice)
        return value.map(lambda atom: self._item(frame, node, atom, index))

    def _item(self, frame: Frame, node: ast.Subscript, atom: Atom, index: Value) -> Value:
        if isinstance(atom, Items):
            position = index.constant
            if isinstance(node.slice, ast.Slice):
                return sequence(atom.element, atom.kind)
            if (
                atom.items is not None and isinstance(position, int)
                and -len(atom.items) <= position < len(atom.items)
            ):
                return atom.items[position]
            return atom.element
        if isinstance(atom, Table):
            known = atom.get(index.constant) if isinstance(index.only, Const) else None
            if known is not None:
                return known
            if isinstance(index.only, Const):
                return atom.rest
            return join([*(value for _, value in atom.entries), atom.rest])
        if isinstance(atom, Tensor):
            return of(library.derived(self, atom))
        if isinstance(atom, Thing):
            return library.item(self, frame, node, atom, index)
        if isinstance(atom, Unknown) and atom.key is not None and isinstance(index.only, Const):
            return unknown(("item", atom.key, index.constant))
        if isinstance(atom, External) and atom.name == "os.environ":
            return unknown(("env", index.constant))
        return UNKNOWN

    def on_Slice(self, frame: Frame, node: ast.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.eval(frame, part)
        return UNKNOWN

    def on_Lambda(self, frame: Frame, node: ast.Lambda) -> Value:
        frame.shared = True
        defaults = tuple(self.eval(frame, item) for item in node.args.defaults)
        kw_defaults = tuple(
            self.eval(frame, item) if item is not None else None
            for item in node.args.kw_defaults
        )
        return of(Function(node, frame.module, frame, None, defaults, kw_defaults))

    def on_Yield(self, frame: Frame, node: ast.Yield) -> Value:
        frame.yields.append(self.eval(frame, node.value))
        return UNKNOWN

    def on_YieldFrom(self, frame: Frame, node: ast.YieldFrom) -> Value:
        frame.yields.append(self.element(self.eval(frame, node.value)))
        return UNKNOWN


def denies_gpu(node: ast.expr, truth: bool) -> bool:
    """Whether a test says by its names that no GPU is used: ``gpus == 0``, ``use_cuda`` false."""
    if _flag(node):
        return not truth
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and _flag(node.left):
        right = node.comparators[0]
        if isinstance(right, ast.Constant):
            if isinstance(node.ops[0], (ast.Eq, ast.Is)) and not right.value:
                return truth
            if isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) and not right.value:
                return not truth
            if (isinstance(node.ops[0], ast.Gt) and right.value == 0) or (
                isinstance(node.ops[0], ast.GtE) and right.value == 1
            ):
                return not truth
    return False


def _flag(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
    return name in GPU_FLAGS


def plain_condition(key: Key, truth: bool) -> tuple[Key, bool]:
    """The condition "`key` is `truth`" without negations."""
    while isinstance(key, tuple) and key and key[0] == "not":
        key, truth = key[1], not truth
    return (GPU_PRESENT if key == ("gpu-list",) else key, truth)


def truth_of(atom: Atom) -> bool | None:
    """Whether `atom` is true, where that is known."""
    if isinstance(atom, Const):
        return bool(atom.value)
    if isinstance(atom, Items):
        return bool(atom.items) if atom.items is not None else None
    if isinstance(atom, (Function, Class, Bound, Partial, Delayed, TaskCall)):
        return True
    if isinstance(atom, Thing) and atom.kind in ("model", "optimizer"):
        return True
    return None


_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def compare(op: ast.cmpop, left: Atom, right: Atom) -> Atom:
    """What ``left op right`` is."""
    negative = isinstance(op, (ast.NotEq, ast.IsNot, ast.NotIn))
    if isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        if isinstance(left, Const) and isinstance(right, Const):
            return Const((left.value == right.value) is not negative, "bool")
        if isinstance(left, Const):
            left, right = right, left
        if isinstance(left, Unknown) and left.key == ("gpu-count",) and right == Const(0, "int"):
            return Unknown(GPU_PRESENT if negative else ("not", GPU_PRESENT))
        if isinstance(left, Unknown) and left.key is not None and isinstance(right, Const):
            key: Key = ("eq", left.key, right.value)
            return Unknown(("not", key) if negative else key)
        if isinstance(right, Const) and right.value is None and not isinstance(left, Unknown):
            return Const(negative, "bool")
        if isinstance(left, Thing) and left.kind == "device" and isinstance(right, Const):
            return Const(str(left.name).startswith(str(right.value)) is not negative, "bool")
        return Unknown()
    if isinstance(op, (ast.In, ast.NotIn)):
        if isinstance(left, Const) and isinstance(right, Items) and right.items is not None:
            values = [item.only for item in right.items]
            if all(isinstance(item, Const) for item in values):
                found = any(isinstance(item, Const) and item.value == left.value
                            for item in values)
                return Const(found is not negative, "bool")
        if isinstance(left, Const) and isinstance(right, Const):
            a, b = left.value, right.value
            if isinstance(a, str) and isinstance(b, str):
                return Const((a in b) is not negative, "bool")
        if isinstance(left, Const) and isinstance(right, Unknown) and right.key is not None:
            key = ("in", right.key, left.value)
            if left.value in ("cuda", "gpu", "GPU"):
                key = ("contains", right.key, "cuda")
            return Unknown(("not", key) if negative else key)
        return Unknown()
    if isinstance(left, Const) and isinstance(right, Const):
        a, b = left.value, right.value
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            return Const(_ORDER[type(op)](a, b), "bool")
    if isinstance(left, Unknown) and left.key is not None and isinstance(right, Const):
        if left.key == ("gpu-count",):
            return _gpu_count(op, right.value)
        return Unknown(("cmp", left.key, type(op).__name__, right.value))
    return Unknown()


def _gpu_count(op: ast.cmpop, value: Hashable) -> Atom:
    if isinstance(op, ast.Gt) and value == 0:
        return Unknown(("gpu-present",))
    if isinstance(op, ast.GtE) and value == 1:
        return Unknown(("gpu-present",))
    if (isinstance(op, ast.Lt) and value == 1) or (isinstance(op, ast.LtE) and value == 0):
        return Unknown(("not", ("gpu-present",)))
    return Unknown(("cmp", ("gpu-count",), type(op).__name__, value))
