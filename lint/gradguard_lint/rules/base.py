"""What a rule is: a code, and a check on the semantics.

A rule is a module named after its code that sets ``CODE`` and ``check``. The page beside it, a
Markdown file of the same name, holds complete programs that tests check. In it each reported line
ends in a comment with the code, and a ``diff`` block below a program is its repair.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step, TaskRun
from gradguard_lint.domain.shapes import inner, name_of
from gradguard_lint.domain.values import (
    Atom,
    Bound,
    Instance,
    Method,
    Site,
    TaskCall,
    Tensor,
    Thing,
    Value,
)
from gradguard_lint.engine.crossing import CALLED
from pytest_gradguard.records import fields

TYPE_CHECKING = False  # as typing's own, without the cost of importing typing
if TYPE_CHECKING:
    from gradguard_lint.domain.effects import Kind
    from gradguard_lint.fixes.changes import Fix


@fields
class Gone:
    """What a library has no more, so that it does harm only where a project asks for the version.

    Attributes:
        packages: those that it was in, as indexes know them.
        version: the first without it, of each.
        said: the message that is left where a project asks for an older one.
    """

    packages: tuple[str, ...]
    version: str
    said: str


@fields
class Report:
    """What a rule says about one place."""

    site: Site
    message: str
    trace: tuple[Step, ...] = ()
    severity: str | None = None
    """The severity, where it is not the catalogue's."""
    call: ParallelCall | None = None
    """The parallel call that it is about."""
    what: str = ""
    """The expression or object that it is about."""
    others: tuple[Site, ...] = ()
    """The other calls that hand out work which comes here."""
    fix: Fix | None = None
    """How the program is repaired, where that can be said."""
    when: Conditions = NONE
    """What has to hold for it, beside what its call asks for."""
    case: str = ""
    """The case of the pitfall that it is, where the catalogue's advice depends on it; by default
    the library of `call`."""
    gone: Gone | None = None
    """What it is about, where older versions of a library still have that."""
    advice: str = ""
    """What to do, where that names something of the program."""
    otherwise: tuple[Report, ...] = ()
    """What is said of other places where nothing is to be said of this one."""


def handed_out(task: TaskRun) -> Step:
    """The step "these tasks are given to workers here"."""
    return Step(task.call.site, task.runs)


def sent_with(task: TaskRun, sent: TaskCall) -> Step:
    """The step that ships what crosses with the task, or with the initializer of its worker."""
    if sent is task.task:
        return handed_out(task)
    return Step(sent.site, f"the initializer runs in {task.call.workers}")


def chain(effect: Effect) -> tuple[Step, ...]:
    """How the program came to `effect`."""
    origin = (effect.origin,) if effect.origin is not None else ()
    return (*effect.chain, *origin)


def sites_to(reached: Effect | ParallelCall) -> list[Site]:
    """The places by which the program comes to an effect or a call, its own last."""
    return [*(step.site for step in reached.chain), reached.site]


def loops_around(sites: Sequence[Site]) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The loop statements that all `sites`, which are of one module, stand in."""
    return [
        node
        for node in ast.walk(sites[0].module.tree)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        and all(site.stands_in(node) for site in sites)
    ]


def after_call(program: Program, call: ParallelCall, kinds: Iterable[Kind]) -> Iterator[Effect]:
    """The parent's effects of these kinds that may come after `call`."""
    for effect in program.kinds(*kinds):
        if effect.worker is None and call.ident in effect.calls:
            yield effect


def origins(tensor: Tensor) -> set[int]:
    """The identities of `tensor` and of all that it was computed from."""
    return {tensor.ident, *tensor.sources}


def place(site: Site, seen_from: Site) -> str:
    """The line, with the file where that is another one."""
    if site.module is seen_from.module:
        return f"line {site.line}"
    return f"{os.path.basename(site.path)}:{site.line}"


def code(what: str) -> str:
    """`what`, an expression, as messages quote it."""
    return what if "`" in what else f"`{what}`"


def capitalised(text: str) -> str:
    """`text` as a sentence begins with it."""
    return text[:1].upper() + text[1:]


MOST = 5
"""How many things of one kind a message names."""


def listed(names: Sequence[str]) -> str:
    """`names`, as a sentence has them: the first few, and how many more."""
    shown = list(names[:MOST])
    if len(names) > MOST:
        shown.append(f"{len(names) - MOST} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def come_to(effect: Effect, does: str) -> tuple[Step, ...]:
    """How the parent, or a worker, comes to `effect`, with what to say there."""
    return (*effect.chain, Step(effect.site, does))


def before_fork(call: ParallelCall, first: Effect, does: str) -> tuple[Step, ...]:
    """How the parent comes to what it has done, and that this is before the workers of `call` are
    forked: where it stands below that, in an earlier iteration of a loop."""
    return come_to(first, f"{does}, before the fork{_earlier_iteration(call, first)}")


def _earlier_iteration(call: ParallelCall, first: Effect) -> str:
    around: list[Site] = []
    for one, other in zip(sites_to(first), sites_to(call), strict=False):
        if one == other:
            around.append(one)
            continue
        if one.module is not other.module or one.line <= other.line:
            return ""
        for inside in ((one, other), *((site,) for site in reversed(around))):
            loops = loops_around(inside)
            if loops:
                loop = max(loops, key=lambda node: node.lineno)
                where = place(Site(inside[0].module, loop, None), first.site)
                return f", in an earlier iteration of the loop ({where})"
        return ""
    return ""


def on_gpu(atom: Atom) -> bool:
    """Whether `atom` is known to live on a GPU."""
    if isinstance(atom, Tensor):
        return atom.gpu
    return isinstance(atom, Thing) and atom.gpu and atom.kind in ("model", "state")


def returns_to_gpu(atom: Atom) -> bool:
    """Whether unpickling `atom` puts it on the GPU again; other frameworks may pickle a copy."""
    return on_gpu(atom) and (not isinstance(atom, Tensor) or atom.framework in ("torch", "cupy"))


def started_cuda(call: ParallelCall, *, named: bool = False) -> Iterator[Effect]:
    """What the parent did before workers were forked so that CUDA fails in them; also where it has
    to be told to, if something is there that shows that it was: it `named` the GPU."""
    unasked = call.start == "fork" and bool(call.earlier("gpu-unasked"))
    kinds = (*_STARTS, "gpu-named") if named else _STARTS
    for kind in kinds if call.start == "fork" else ():
        for first in call.certain(kind):
            if not (unasked and kind == "gpu-driver" and first.framework == "torch"):
                yield first


_STARTS: tuple[Kind, ...] = ("gpu-init", "gpu-driver", "autograd")


def captures(program: Program, task: TaskRun) -> Iterator[tuple[str, Value, Site]]:
    """The variables that are pickled with the worker function, with their values in the parent.

    Functions of an imported module are pickled by name, so their globals are not; a fork
    inherits everything and pickles neither.
    """
    for effect in variables(task):
        if effect.is_global and (
            task.call.start not in ("loky", "dask")
            or effect.home != program.entry
            or task.call.root != 1
        ):
            continue
        yield effect.what, effect.value, effect.site


def brought(task: TaskRun, value: Value) -> Iterator[Atom]:
    """What is in a captured `value`, but for what the task has put there itself."""
    for atom in inner(value, 2):
        if not isinstance(atom, (Instance, Tensor, Thing)) or atom.born != task.ident:
            yield atom


def variables(task: TaskRun) -> Iterator[Effect]:
    """The uses of variables from outside by a worker's function, but for attributes of `self`."""
    for effect in task.effects:
        if effect.kind == "capture" and not effect.what.startswith("self."):
            yield effect


def as_written(sent: TaskCall, path: str) -> str:
    """`path`; where it begins with what the task calls, or with the object whose method that is,
    as the program writes these, or `code` quotes them."""
    head, dot, rest = path.partition(".")
    bound = isinstance(sent.function.only, Bound)
    if head != ("self" if bound else CALLED):
        return path
    name = next(filter(None, map(name_of, sent.function.atoms)), "")
    written = _called(sent)
    if all(isinstance(atom, (Bound, Method)) for atom in sent.function.atoms):
        method = isinstance(written, ast.Attribute) and written.attr == name
        written = written.value if isinstance(written, ast.Attribute) and method else None
    if isinstance(written, (ast.Name, ast.Attribute, ast.Subscript)):
        return ast.unparse(written) + dot + rest
    return path if bound else f"what `{name}` belongs to"


def _called(sent: TaskCall) -> ast.expr | None:
    """The expression of what the task calls, where the call that sends it has that."""
    call = sent.site.node
    if not isinstance(call, ast.Call):
        return None
    inner = call.func if isinstance(call.func, ast.Call) else call  # delayed(f)(…)
    given = [item.value for item in call.keywords if item.arg in ("target", "func", "fn")]
    return next(iter((*given, *inner.args)), None)


def severed_by(value: Value) -> set[int]:
    """What cut `value` off: the identities of calls and collectives."""
    return {ident for atom in inner(value) if isinstance(atom, Tensor) for ident in atom.severed}
