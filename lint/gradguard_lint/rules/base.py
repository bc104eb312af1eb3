"""The parts of rules: reports, and steps and names in them.

A rule is a module named after its code that sets ``CODE`` and ``check``. The Markdown page of the
same name has complete programs that tests check: each reported line ends in a comment with the
code, and a ``diff`` block below a program is its repair.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence

from gradguard_lint.domain.conditions import NONE, Conditions
from gradguard_lint.domain.effects import Effect, ParallelCall, Program, Step, TaskRun, of_kinds
from gradguard_lint.domain.payloads import Autograd, Capture, GpuSetting, GpuUse
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
    from gradguard_lint.domain.effects import Q
    from gradguard_lint.fixes.changes import Fix


@fields
class Gone:
    """A name that newer versions of a library removed.

    Attributes:
        packages: the distributions that had it.
        version: the first version of each without it.
        said: the message for projects that ask for an older version.
    """

    packages: tuple[str, ...]
    version: str
    said: str


@fields
class Report:
    """A finding of a rule at one place."""

    site: Site
    message: str
    trace: tuple[Step, ...] = ()
    severity: str | None = None
    """The severity, if it differs from the catalogue."""
    call: ParallelCall | None = None
    """The parallel call of the finding."""
    what: str = ""
    """The expression or object of the finding."""
    others: tuple[Site, ...] = ()
    """Further calls whose tasks reach this place."""
    fix: Fix | None = None
    """The repair, if one is known."""
    when: Conditions = NONE
    """Conditions of the finding beyond those of its call."""
    case: str = ""
    """The case whose advice the catalogue gives; by default the library of `call`."""
    gone: Gone | None = None
    """The removed name of the finding, which older versions of its library have."""
    advice: str = ""
    """Advice with the names of the program, in place of the catalogue's."""
    otherwise: tuple[Report, ...] = ()
    """The findings to report if a comment silences this one."""


def dispatch_step(task: TaskRun) -> Step:
    """The step at which workers get the task."""
    return Step(task.call.site, task.runs)


def sending_step(task: TaskRun, sent: TaskCall) -> Step:
    """The step at which the task, or its worker's initializer, is sent."""
    if sent is task.task:
        return dispatch_step(task)
    return Step(sent.site, f"the initializer runs in {task.call.workers}")


def chain(effect: Effect) -> tuple[Step, ...]:
    """The steps to `effect`, with the one that named its device."""
    origin = (effect.origin,) if effect.origin is not None else ()
    return (*effect.chain, *origin)


def sites_to(reached: Effect | ParallelCall) -> list[Site]:
    """The sites of the calls that lead to an effect or call, with its own last."""
    return [*(step.site for step in reached.chain), reached.site]


def loops_around(sites: Sequence[Site]) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The loop statements that contain all `sites` of one module."""
    return [
        node
        for node in ast.walk(sites[0].module.tree)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        and all(site.stands_in(node) for site in sites)
    ]


def after_call(program: Program, call: ParallelCall, *kinds: type[Q]) -> Iterator[Effect[Q]]:
    """The parent's effects of these kinds that may follow `call`."""
    for effect in program.effects_of(*kinds):
        if effect.worker is None and call.ident in effect.calls:
            yield effect


def origins(tensor: Tensor) -> set[int]:
    """The identities of `tensor` and of the values it was computed from."""
    return {tensor.ident, *tensor.sources}


def place(site: Site, seen_from: Site) -> str:
    """The line, with the file if it is another one."""
    if site.module is seen_from.module:
        return f"line {site.line}"
    return f"{os.path.basename(site.path)}:{site.line}"


def code(what: str) -> str:
    """An expression in backticks, unless it contains some."""
    return what if "`" in what else f"`{what}`"


def capitalised(text: str) -> str:
    """`text` with a capital letter, for the start of a sentence."""
    return text[:1].upper() + text[1:]


MOST = 5
"""The most names in a list of a message."""


def listed(names: Sequence[str]) -> str:
    """An enumeration of the first names, with the number of others."""
    shown = list(names[:MOST])
    if len(names) > MOST:
        shown.append(f"{len(names) - MOST} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def steps_to(effect: Effect, does: str) -> tuple[Step, ...]:
    """The steps to `effect`, with the message `does` at its place."""
    return (*effect.chain, Step(effect.site, does))


def before_fork(call: ParallelCall, first: Effect, does: str) -> tuple[Step, ...]:
    """The steps to `first`, an effect of the parent before the workers of `call` are forked."""
    return steps_to(first, f"{does}, before the fork{_earlier_iteration(call, first)}")


def _earlier_iteration(call: ParallelCall, first: Effect) -> str:
    """The loop in whose earlier iteration `first` happens, if it stands below `call`."""
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
    """Whether `atom` is certainly on a GPU."""
    if isinstance(atom, Tensor):
        return atom.gpu
    return isinstance(atom, Thing) and atom.gpu and atom.kind in ("model", "state")


def returns_to_gpu(atom: Atom) -> bool:
    """Whether unpickling `atom` puts it on the GPU; other frameworks may pickle a CPU copy."""
    return on_gpu(atom) and (not isinstance(atom, Tensor) or atom.framework in ("torch", "cupy"))


def started_cuda(call: ParallelCall, *, named: bool = False) -> Iterator[Effect]:
    """The parent's effects before the fork that make CUDA fail in the workers.

    `named`: including GPU uses that the program is configured to make, as other code shows.
    """
    if call.start != "fork":
        return
    unasked = any(it.payload.setting == "unasked" for it in call.earlier(GpuSetting))
    used = call.certain(GpuUse)
    yield from (it for it in used if it.gpu_use == "context")
    for first in used:
        if first.gpu_use == "driver" and not (unasked and first.payload.framework == "torch"):
            yield first
    yield from call.certain(Autograd)
    yield from (it for it in used if named and it.gpu_use == "named")


def captures(program: Program, task: TaskRun) -> Iterator[tuple[str, Value, Site]]:
    """Variables pickled with the worker function: name, value in the parent, site.

    Functions of imported modules are pickled by name, without globals; a fork pickles nothing.
    """
    for effect in variables(task):
        if effect.payload.is_global and (
            task.call.start not in ("loky", "dask")
            or effect.payload.module != program.entry
            or task.call.root != 1
        ):
            continue
        yield effect.what, effect.payload.value, effect.site


def captured_atoms(task: TaskRun, value: Value) -> Iterator[Atom]:
    """The atoms of a captured `value` that the task did not create itself."""
    for atom in inner(value, 2):
        if not isinstance(atom, (Instance, Tensor, Thing)) or atom.born != task.ident:
            yield atom


def variables(task: TaskRun) -> Iterator[Effect[Capture]]:
    """The captures of a task, without attributes of `self`."""
    for effect in of_kinds(task.effects, Capture):
        if not effect.what.startswith("self."):
            yield effect


def as_written(sent: TaskCall, path: str) -> str:
    """`path`, with the called function or its object as the source has it."""
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
    """The expression of the task's function in the call that sends it."""
    call = sent.site.node
    if not isinstance(call, ast.Call):
        return None
    inner = call.func if isinstance(call.func, ast.Call) else call  # delayed(f)(…)
    given = [item.value for item in call.keywords if item.arg in ("target", "func", "fn")]
    return next(iter((*given, *inner.args)), None)


def severed_by(value: Value) -> set[int]:
    """The identities of the calls and collectives that cut the graph of `value`."""
    return {ident for atom in inner(value) if isinstance(atom, Tensor) for ident in atom.severed}
