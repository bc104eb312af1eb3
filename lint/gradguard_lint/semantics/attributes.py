"""Attributes and items: of objects, classes, modules and containers."""

from __future__ import annotations

import ast

from gradguard_lint.semantics import library
from gradguard_lint.semantics.branches import Branches
from gradguard_lint.semantics.core import Args
from gradguard_lint.semantics.frames import Frame
from gradguard_lint.semantics.values import (
    GRADIENT,
    UNKNOWN,
    Atom,
    Bound,
    Class,
    Const,
    External,
    Function,
    Instance,
    Items,
    Method,
    ProjectModule,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    join,
    of,
    owned,
    sequence,
    unknown,
)


class Attributes(Branches):
    """Evaluation of ``a.b`` and ``a[b]``."""

    def captured(self, frame: Frame, node: ast.AST, name: str, value: Value, home: Frame) -> Value:
        """A value from outside the worker; defined with the names."""
        raise NotImplementedError

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
        if (
            isinstance(atom, Items)
            and name in ("values", "indices")
            and any(atom.element.tensors())
        ):
            return atom.element
        return of(Method(atom, name))

    def instance_attribute(self, frame: Frame, node: ast.AST, atom: Instance, name: str) -> Value:
        value = self.read(atom.ident, name)
        if value is not None:
            if self.worker is not None and atom.born != self.worker.ident:
                if any(isinstance(item, (Tensor, Thing)) for item in value.atoms):
                    self.effect(
                        frame,
                        "capture",
                        node,
                        f"self.{name}",
                        value=value,
                        home="",
                        is_global=False,
                    )
                if self.in_process_worker:
                    return self.arrived(value)
            elif self.worker is not None:
                # What belongs to an object of this task alone belongs to this task alone.
                return owned(value, self.worker.ident)
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
            lambda atom: (
                of(Bound(atom, cls))
                if isinstance(atom, Function) and "class" in atom.marks
                else of(atom)
            )
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
                atom.items is not None
                and isinstance(position, int)
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
        if isinstance(atom, Unknown) and atom.key is not None and isinstance(index.only, Const):
            return unknown(("item", atom.key, index.constant))
        if isinstance(atom, External) and atom.name == "os.environ":
            return unknown(("env", index.constant))
        return UNKNOWN
