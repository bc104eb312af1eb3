"""Calls: of the project's functions and classes, and of what libraries give."""

from __future__ import annotations

import ast
from dataclasses import replace

from gradguard_lint.semantics import library
from gradguard_lint.semantics.core import DEPTH, Args
from gradguard_lint.semantics.expressions import Expressions
from gradguard_lint.semantics.frames import Frame
from gradguard_lint.semantics.values import (
    NOTHING,
    UNKNOWN,
    Atom,
    Bound,
    Class,
    Const,
    Delayed,
    External,
    Function,
    Instance,
    Items,
    Method,
    Partial,
    Table,
    Tensor,
    Thing,
    Unknown,
    Value,
    items,
    join,
    of,
    sequence,
    unknown,
)

GRAD_MARKS = ("no_grad", "enable_grad")


class Calls(Expressions):
    """Evaluation of calls."""

    # -- the call expression --------------------------------------------------------------------

    def on_Call(self, frame: Frame, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._super(frame)
        function = self.eval(frame, node.func)
        args = self.arguments(frame, node)
        result = self.call(frame, node, function, args)
        self._rebind(frame, node, function, args)
        return result

    def arguments(self, frame: Frame, node: ast.Call) -> Args:
        args = Args()
        for item in node.args:
            if isinstance(item, ast.Starred):
                value = self.eval(frame, item.value)
                only = value.only
                if isinstance(only, Items) and only.items is not None and args.rest is None:
                    args.positional.extend(only.items)
                else:
                    args.rest = self.element(value)
            else:
                value = self.eval(frame, item)
                if args.rest is None:
                    args.positional.append(value)
                else:
                    args.rest = join((args.rest, value))
        for keyword in node.keywords:
            value = self.eval(frame, keyword.value)
            if keyword.arg is not None:
                args.keywords[keyword.arg] = value
                continue
            only = value.only
            args.open = args.open or not isinstance(only, Table) or only.keys is not None
            if isinstance(only, Table):
                for key, entry in only.entries:
                    if isinstance(key, str):
                        args.keywords.setdefault(key, entry)
        return args

    def in_loop(self, frame: Frame) -> bool:
        """Whether what is evaluated in `frame` is evaluated again and again."""
        scope: Frame | None = frame
        while scope is not None and scope.function is frame.function:
            if scope.loop_names:
                return True
            scope = scope.parent
        return self.loop_depth > 0

    def private_parts(
        self, frame: Frame, node: ast.Call, extra: frozenset[str] = frozenset()
    ) -> tuple[frozenset[int], frozenset[str]]:
        """The arguments of `node` that differ from one turn of the loops around it to the next."""
        names: set[str] = set(extra)
        scope: Frame | None = frame
        while scope is not None and scope.function is frame.function:
            for loop in scope.loop_names:
                names |= loop
            scope = scope.parent
        if not names:
            return frozenset(), frozenset()

        def varies(item: ast.AST) -> bool:
            if isinstance(item, ast.Call) or any(
                isinstance(part, ast.Call) for part in ast.walk(item)
            ):
                return True
            return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(item))

        positions = {index for index, item in enumerate(node.args) if varies(item)}
        function = node.func
        if isinstance(function, ast.Call) and any(varies(item) for item in function.args):
            inner = function.args[0] if function.args else function
            if any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(inner)):
                positions.add(-1)
        keywords = {
            item.arg for item in node.keywords if item.arg is not None and varies(item.value)
        }
        return frozenset(positions), frozenset(keywords)

    def _rebind(self, frame: Frame, node: ast.Call, function: Value, args: Args) -> None:
        """In-place methods: the name that they were called on now stands for the new state."""
        if not isinstance(node.func, ast.Attribute):
            return
        name = node.func.attr
        changed = None
        if name == "requires_grad_" and function.is_unknown:
            flag = args.get(0, "requires_grad")
            if flag is None or True in flag.constants():
                leaf = Tensor("torch", "leaf", False, self.worker_ident, self.ident_at(node))
                changed = of(leaf)
        for atom in function.atoms:
            if isinstance(atom, Method):
                new = library.changed_receiver(self, atom.receiver, name, args)
                if new is not None:
                    changed = new if changed is None else join((changed, new))
        if changed is not None:
            self.rebind(frame, node.func.value, changed)

    def rebind(self, frame: Frame, target: ast.expr, value: Value) -> None:
        """Store `value` where `target` was read from."""
        if isinstance(target, ast.Name):
            found = self.lookup(frame, target.id)
            if found is not None:
                self.store[(found[1].ident, target.id)] = value
        elif isinstance(target, ast.Attribute):
            for owner in self.eval(frame, target.value).of(Instance):
                if (owner.ident, target.attr) in self.store:
                    self.store[(owner.ident, target.attr)] = value
        elif isinstance(target, ast.Subscript):
            holder = self.eval(frame, target.value)
            if any(holder.of(Items)) or any(holder.of(Table)):
                self.assign(frame, target, value)

    def _super(self, frame: Frame) -> Value:
        scope: Frame | None = frame
        while scope is not None and scope.function is None:
            scope = scope.parent
        function = scope.function if scope is not None else None
        while function is not None and function.owner is None and scope is not None:
            scope = scope.parent
            function = scope.function if scope is not None else None
        if function is None or function.owner is None or scope is None:
            return UNKNOWN
        arguments = getattr(function.node.args, "args", [])
        receiver = self.read(scope.ident, arguments[0].arg) if arguments else None
        atom = receiver.only if receiver is not None else None
        return of(
            Thing(
                "super",
                function.owner.name,
                parts=(
                    ("class", of(function.owner)),
                    ("self", of(atom) if atom is not None else UNKNOWN),
                ),
            )
        )

    # -- dispatch -------------------------------------------------------------------------------

    def call(self, frame: Frame, node: ast.AST, function: Value, args: Args) -> Value:
        """What calling `function` gives; its effects are recorded."""
        results = []
        for choice in function.choices[:4]:
            result = self.call_atom(frame, node, choice.atom, args)
            if choice.when:
                result = Value(
                    tuple(replace(item, when=item.when | choice.when) for item in result.choices)
                )
            results.append(result)
        return join(results)

    def call_atom(self, frame: Frame, node: ast.AST, atom: Atom, args: Args) -> Value:
        if isinstance(atom, Function):
            return self.apply(frame, node, atom, args)
        if isinstance(atom, Bound):
            bound = Args([of(atom.receiver), *args.positional], args.keywords, args.rest, args.open)
            return self.apply(frame, node, atom.function, bound)
        if isinstance(atom, Class):
            return self.instantiate(frame, node, atom, args)
        if isinstance(atom, Instance):
            method = self.find_in_class(atom.cls, "__call__")
            if method is not None:
                return self.call(frame, node, self.bind(frame, node, method, atom), args)
            return library.call_instance(self, frame, node, atom, args)
        if isinstance(atom, Partial):
            keywords = {**dict(atom.keywords), **args.keywords}
            merged = Args([*atom.args, *args.positional], keywords, args.rest, args.open)
            return self.call(frame, node, atom.function, merged)
        if isinstance(atom, Delayed):
            return library.make_task(self, frame, node, atom, args)
        if isinstance(atom, External):
            return library.call(self, frame, node, atom.name, args)
        if isinstance(atom, Method):
            return library.call_method(self, frame, node, atom, args)
        if isinstance(atom, (Thing, Tensor)):
            return library.call_thing(self, frame, node, atom, args)
        if isinstance(atom, Unknown):
            known = library.call_unknown(self, frame, node, atom, args)
            if known is not None:
                return known
            if atom.key is not None and not args.positional and not args.keywords:
                return unknown(("call", atom.key))
        return UNKNOWN

    # -- functions ------------------------------------------------------------------------------

    def apply(self, frame: Frame, node: ast.AST, function: Function, args: Args) -> Value:
        """Run the body of `function` on `args`."""
        code = function.node
        self.reached.add(id(code))
        if len(self.stack) >= DEPTH or self.stack.count(code) >= 2:
            return UNKNOWN
        is_lambda = isinstance(code, ast.Lambda)
        message = "calls a lambda" if is_lambda else f"calls `{function.name}`"
        inner = Frame(
            self.new_ident(), function.module, function.frame, function, born=self.worker_ident
        )
        self.bind_arguments(inner, function, args)
        assumed, depth, statement = dict(self.assumed), self.loop_depth, self.statement
        modes = self.modes
        if "no_grad" in function.marks:
            self.modes = replace(modes, grad=False, grad_site=self.site(frame, node))
        elif "enable_grad" in function.marks:
            self.modes = replace(modes, grad=True, grad_site=None)
        if "compiled" in function.marks:
            self.modes = replace(self.modes, compiled=True)
        self.stack.append(code)
        try:
            with self.called_from(frame, node, message):
                if isinstance(code, ast.Lambda):
                    inner.returns.append((self.eval(inner, code.body), code.body))
                else:
                    self.run_body(inner, code)
        finally:
            self.stack.pop()
            self.assumed, self.loop_depth, self.statement = assumed, depth, statement
            self.modes = modes
        result = self._result(inner, code)
        self.last_returns = (function.module, function.name, inner.returns)
        if not inner.shared:
            self._forget(inner)
        return result

    def module_frame(self, name: str) -> Frame | None:
        """The frame of a project module; defined with the imports."""
        raise NotImplementedError

    def run_body(self, inner: Frame, code: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Execute the statements of a function; defined with the statements."""
        raise NotImplementedError

    def _result(self, inner: Frame, code: ast.AST) -> Value:
        if inner.yields:
            return sequence(join(inner.yields), "generator")
        returned = [value for value, _ in inner.returns]
        if not returned:
            return NOTHING
        return join(returned)

    def _forget(self, inner: Frame) -> None:
        code = inner.function.node if inner.function is not None else None
        if code is None:
            return
        names = self.locals_of.get(id(code))
        if names is None:
            spec = code.args
            names = {item.arg for item in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
            names |= {item.arg for item in (spec.vararg, spec.kwarg) if item is not None}
            for part in ast.walk(code):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    names.add(part.id)
                elif isinstance(part, (ast.alias, ast.ExceptHandler)) and part.name:
                    names.add(getattr(part, "asname", None) or part.name.partition(".")[0])
            self.locals_of[id(code)] = names
        for name in names:
            self.store.pop((inner.ident, name), None)

    def bind_arguments(self, inner: Frame, function: Function, args: Args) -> None:
        """Put the arguments (or the defaults) under the parameters' names."""
        spec = function.node.args
        names = [item.arg for item in (*spec.posonlyargs, *spec.args)]
        keywords = dict(args.keywords)
        for index, name in enumerate(names):
            value: Value | None
            if index < len(args.positional):
                value = args.positional[index]
            elif name in keywords:
                value = keywords.pop(name)
            elif args.rest is not None:
                value = args.rest
            else:
                offset = index - (len(names) - len(function.defaults))
                value = function.defaults[offset] if 0 <= offset < len(function.defaults) else None
                if value is None or args.open:
                    value = self._any_or(function, name, value)
            self.store[(inner.ident, name)] = value
        for index, item in enumerate(spec.kwonlyargs):
            value = keywords.pop(item.arg, None)
            if value is None and index < len(function.kw_defaults):
                value = function.kw_defaults[index]
            self.store[(inner.ident, item.arg)] = (
                value if value is not None else unknown(("argument", id(function.node), item.arg))
            )
        if spec.vararg is not None:
            extra_items = args.positional[len(names) :]
            if args.rest is not None:
                value = sequence(join((*extra_items, args.rest)), "tuple")
            else:
                value = items("tuple", extra_items)
            self.store[(inner.ident, spec.vararg.arg)] = value
        if spec.kwarg is not None:
            self.store[(inner.ident, spec.kwarg.arg)] = of(
                Table(tuple(keywords.items()), UNKNOWN, UNKNOWN if args.open else None)
            )

    def standalone_arguments(self, function: Function, skip: int = 0) -> Args:
        """What a function that nobody here calls may be given: anything, or its defaults."""
        spec = function.node.args
        args = Args()
        named = [*spec.posonlyargs, *spec.args]
        for index, item in enumerate(named):
            if index < skip:
                continue
            offset = index - (len(named) - len(function.defaults))
            default = function.defaults[offset] if 0 <= offset < len(function.defaults) else None
            args.keywords[item.arg] = self._any_or(function, item.arg, default)
        for index, item in enumerate(spec.kwonlyargs):
            default = function.kw_defaults[index] if index < len(function.kw_defaults) else None
            args.keywords[item.arg] = self._any_or(function, item.arg, default)
        args.open = spec.kwarg is not None
        return args

    def _any_or(self, function: Function, name: str, default: Value | None) -> Value:
        key = ("argument", id(function.node), name)
        anything = unknown(key)
        if default is None:
            return anything
        only = default.only
        if isinstance(only, Const):
            when = frozenset({(("eq", key, only.value), True)})
            self.defaults[key] = only.value
            default = Value(tuple(replace(c, when=c.when | when) for c in default.choices))
        return Value((*anything.choices, *default.choices))

    # -- classes --------------------------------------------------------------------------------

    def instantiate(self, frame: Frame, node: ast.AST, cls: Class, args: Args) -> Value:
        """Make an object of a class of the project."""
        instance = Instance(cls, self.ident_at(node, id(cls.node)), self.worker_ident)
        init = self.find_in_class(cls, "__init__")
        if init is not None:
            self.call(frame, node, self.bind(frame, node, init, instance), args)
        else:
            self._dataclass_fields(cls, instance, args)
        library.instantiated(self, frame, node, instance, args)
        return of(instance)

    def _dataclass_fields(self, cls: Class, instance: Instance, args: Args) -> None:
        fields = [
            item.target.id
            for item in cls.node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ]
        for index, name in enumerate(fields):
            value = args.get(index, name)
            if value is None:
                value = self.store.get((cls.body.ident, name), None)
            if value is not None:
                self.store[(instance.ident, name)] = value

    def is_none(self, value: Value) -> bool:
        """Whether `value` is None and nothing else."""
        return all(isinstance(atom, Const) and atom.value is None for atom in value.atoms)
