"""Any nesting of containers with tensors: the guard finds what is there once it is unpickled.

What is drawn is a description; the same is built from it again, wherever it is wanted. The oracle
pickles and unpickles the object, and walks through it. Most objects are pickled here, as a task for
workers that are not there, which takes no time; the others go to workers and come back.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import cloudpickle
import numpy
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from torch import nn

Drawn = Any

# -- what is drawn ------------------------------------------------------------------------------


class Plain:
    def __init__(self, items: list[Any]) -> None:
        self.items = items


class Slots:
    __slots__ = ("__weakref__", "first", "items")

    def __init__(self, items: list[Any]) -> None:
        self.items = items


@dataclasses.dataclass
class Data:
    items: list[Any]
    name: str = "data"


class Dropping:
    """Leaves what it holds behind as it is pickled."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __getstate__(self) -> dict[str, Any]:
        return {"items": None}


class Reducing:
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __reduce__(self) -> Any:
        return Reducing, (self.items,)


class Detaching:
    """Sends the values of its tensors alone."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __getstate__(self) -> dict[str, Any]:
        flat = (one for one in self.items if isinstance(one, torch.Tensor))
        return {"items": [one.detach().to_dense() for one in flat]}


Pair = collections.namedtuple("Pair", ("items", "other"))


class Row(NamedTuple):
    items: list[Any]
    number: int = 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    items: tuple[Any, ...]


class Stated:
    """Has a state that is no dictionary."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.items,)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        (self.items,) = state


class Listed(list):  # type: ignore[type-arg]
    """A list with an attribute."""


class Called:
    """A task with what it works on."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __call__(self, *rest: Any) -> int:
        return len(self.items)

    def method(self, *rest: Any) -> int:
        return len(self.items)


class Kind(torch.Tensor):
    """A tensor of a class of the program's."""


class Error(Exception):
    pass


def held(*items: Any) -> int:
    return len(items)


def _closure(items: list[Any]) -> Any:
    return lambda: items


def _module(items: list[Any]) -> Any:
    module = nn.Identity()
    module.items = items
    return module


def _nested(items: list[Any]) -> Any:
    return nn.ModuleDict({"first": nn.Sequential(_module(items), nn.Linear(1, 1))})


def _array(items: list[Any]) -> Any:
    array = numpy.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array


def _listed(items: list[Any]) -> Any:
    made = Listed([1])
    made.items = items  # type: ignore[attr-defined]
    return made


def _hashed(kind: Any, items: list[Any]) -> Any:
    def fits(item: Any) -> bool:
        try:
            hash(item)
        except TypeError:
            return False
        return True

    return kind(filter(fits, items))


def _noted(grad: bool) -> torch.Tensor:
    """A tensor that has another one for an attribute."""
    tensor = torch.ones(2)
    tensor.note = torch.ones(2, requires_grad=grad)  # type: ignore[attr-defined]
    return tensor


def _buffered(grad: bool) -> nn.Module:
    module = nn.Identity()
    module.register_buffer("state", torch.ones(2, requires_grad=grad))
    return module


LEAVES = {
    "number": lambda: 1,
    "text": lambda: "text",
    "none": lambda: None,
    "tensor": lambda: torch.ones(2),
    "leaf": lambda: torch.ones(2, requires_grad=True),
    "history": lambda: torch.ones(2, requires_grad=True) * 2,
    "view": lambda: torch.ones(3, requires_grad=True)[1:],
    "whole": lambda: torch.ones(2, dtype=torch.int64),
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "frozen": lambda: nn.Parameter(torch.ones(2), requires_grad=False),
    "linear": lambda: nn.Linear(1, 1),
    "norm": lambda: nn.BatchNorm1d(1),
    "parameters": lambda: nn.ParameterList([torch.ones(1), torch.ones(1)]),
    "buffer": lambda: _buffered(False),
    "buffer that learns": lambda: _buffered(True),
    "kind": lambda: torch.ones(2, requires_grad=True).as_subclass(Kind),
    "kind without": lambda: torch.ones(2).as_subclass(Kind),
    "half": lambda: torch.ones(2, dtype=torch.bfloat16, requires_grad=True),
    "empty": lambda: torch.ones(0, requires_grad=True),
    "scalar": lambda: torch.tensor(1.0, requires_grad=True),
    "sparse": lambda: torch.eye(2).to_sparse().requires_grad_(),
    "expanded": lambda: torch.ones(1, requires_grad=True).expand(3),
    "noted": lambda: _noted(False),
    "note that learns": lambda: _noted(True),
    "array": lambda: numpy.ones(3),
}
NODES = {
    "list": list,
    "tuple": tuple,
    "dict": lambda items: dict(enumerate(items)),
    "named": lambda items: {f"key {index}": item for index, item in enumerate(items)},
    "ordered": lambda items: collections.OrderedDict(enumerate(items)),
    "default": lambda items: collections.defaultdict(list, enumerate(items)),
    "deque": collections.deque,
    "set": lambda items: _hashed(set, items),
    "frozenset": lambda items: _hashed(frozenset, items),
    "user dict": lambda items: collections.UserDict(enumerate(items)),
    "user list": collections.UserList,
    "chain": lambda items: collections.ChainMap(dict(enumerate(items)), {}),
    "row": Row,
    "frozen data": lambda items: Frozen(tuple(items)),
    "stated": Stated,
    "listed": _listed,
    "array of objects": _array,
    "nested module": _nested,
    "called": Called,
    "default argument": lambda items: _with_default(items),
    "iterator": iter,
    "pair": lambda items: Pair(items, 1),
    "object": Plain,
    "slots": Slots,
    "data": Data,
    "dropping": Dropping,
    "reducing": Reducing,
    "detaching": Detaching,
    "namespace": lambda items: types.SimpleNamespace(items=items),
    "partial": lambda items: functools.partial(held, *items),
    "method": lambda items: Plain(items).__init__,
    "closure": _closure,
    "error": lambda items: Error(items),
    "module": _module,
    "twice": lambda items: [items, items],
    "cycle": lambda items: _cycle(items),
}
FORKING = sorted(set(NODES) - {"closure", "default argument"})
"""What the standard pickler can send."""
SHARED = sorted(
    set(LEAVES)
    - {"history", "view", "expanded", "kind", "sparse"}  # torch refuses them
    - {"noted", "note that learns"}  # attributes stay behind
)
"""What torch's reductions for shared memory send whole."""


def _with_default(items: list[Any]) -> Any:
    return lambda given=items: given


def _cycle(items: list[Any]) -> Any:
    outer = [*items]
    outer.append(outer)
    return outer


def drawn(nodes: list[str], leaves: list[str]) -> st.SearchStrategy[Drawn]:
    """Descriptions of objects."""
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.tuples(st.sampled_from(nodes), st.lists(inner, max_size=4)),
        max_leaves=12,
    )


def built(description: Drawn) -> Any:
    """The object of that description."""
    if isinstance(description, str):
        return LEAVES[description]()
    name, inner = description
    return NODES[name]([built(one) for one in inner])


# -- the truth ----------------------------------------------------------------------------------


def walked(item: Any, seen: dict[int, Any] | None = None) -> Iterator[torch.Tensor]:
    """The tensors in `item`, at any depth, each once."""
    seen = {} if seen is None else seen
    if id(item) in seen:
        return
    seen[id(item)] = item
    inner: list[Any] = []
    if isinstance(item, torch.Tensor):
        yield item
        inner += vars(item).values()
    elif isinstance(item, numpy.ndarray):
        inner += item.tolist() if item.dtype == object else ()
    elif isinstance(item, type(iter([]))):
        inner += item.__reduce__()[1]
    elif isinstance(item, dict):
        inner += [*item.keys(), *item.values()]
    elif isinstance(item, (list, tuple, set, frozenset, collections.deque)):
        inner += item
    elif isinstance(item, functools.partial):
        inner += [item.func, item.args, item.keywords]
    elif isinstance(item, types.FunctionType):
        inner += [cell.cell_contents for cell in item.__closure__ or ()]
        inner += item.__defaults__ or ()
    elif isinstance(item, types.MethodType):
        inner += [item.__self__]
    elif isinstance(item, BaseException):
        inner += [item.args]
    if not isinstance(item, (type, types.FunctionType, types.ModuleType, torch.Tensor)):
        inner += getattr(item, "__dict__", {}).values()
        inner += [getattr(item, name) for name in ("items", "first") if _slot(item, name)]
    for one in inner:
        yield from walked(one, seen)


def _slot(item: Any, name: str) -> bool:
    return name in getattr(type(item), "__slots__", ()) and hasattr(item, name)


def shipped(item: Any) -> set[str]:
    """The findings that shipping `item` has to give."""
    found = set()
    for tensor in walked(cloudpickle.loads(cloudpickle.dumps(item))):
        # Torch's pickle of a sparse tensor forgets that it requires grad: all of ours do.
        if tensor.requires_grad or tensor.is_sparse:
            found.add("GG107" if isinstance(tensor, nn.Parameter) else "GG101")
    return found


def returned(item: Any) -> set[str]:
    """The findings that returning `item` has to give: its tensors with a graph are dropped."""
    arrived = cloudpickle.loads(cloudpickle.dumps(item))
    leaves = sum(t.requires_grad and not isinstance(t, nn.Parameter) for t in walked(arrived))
    graphs = [t for t in walked(item) if t.grad_fn is not None]
    stays = [t for t in walked(item) if t.requires_grad and t.is_leaf]
    stays = [t for t in stays if not isinstance(t, nn.Parameter)]
    return {"GG102"} if graphs and leaves > 0 and _sent(item, bool(stays)) else set()


def _sent(item: Any, others: bool) -> bool:
    """Whether a tensor with a graph is among what is sent."""

    class Marking(cloudpickle.Pickler):
        graphs = False

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, torch.Tensor) and obj.grad_fn is not None:
                Marking.graphs = True
            return super().reducer_override(obj)

    import io

    Marking(io.BytesIO()).dump(item)
    return Marking.graphs


# -- the guard ----------------------------------------------------------------------------------


def ignore(*items: Any) -> int:
    return 0


def build(description: Drawn) -> Any:
    """A task that returns the object."""
    return built(description)


WATCHED = {"GG101", "GG102", "GG107"}


def said(run: Any) -> set[str] | None:
    """What the guard says of `run`; None where it fails without the guard, too.

    joblib pickles arrays of objects by the standard pickler, which takes no lambda.
    """
    from pytest_gradguard import guard

    try:
        with guard("record") as report:
            run()
    except Exception as error:
        try:
            run()
        except type(error):
            return None
        raise
    return {finding.code for finding in report.findings} & WATCHED


def _by_loky(function: Any, item: Any) -> None:
    from joblib import Parallel, delayed

    Parallel(2)([delayed(function)(item), delayed(ignore)(0)])


def _method(items: list[Any]) -> Any:
    return Called(items).method


TASKS: dict[str, Any] = {
    "argument": lambda item: (ignore, (item,), {}),
    "keyword": lambda item: (held, (), {"item": item}),
    "partial": lambda item: (functools.partial(held, item), (1,), {}),
    "closure": lambda item: (_closure([item]), (), {}),
    "default": lambda item: (_with_default([item]), (), {}),
    "method": lambda item: (_method([item]), (), {}),
    "called": lambda item: (Called([item]), (1,), {}),
}
"""How an object goes along with a task: the function, its arguments and keywords."""


def _pickled(function: Any, args: Any, kwargs: Any) -> None:
    """Pickle a task as for a worker."""
    from pytest_gradguard.integrations import Workers, begin, guarded

    call = begin(Workers("nowhere"))
    assert call is not None
    cloudpickle.dumps(guarded(call, function, args, kwargs))


def look(count: int, seed: int) -> list[str]:
    """What the guard says otherwise than the oracle does.

    Args:
        count: how many objects are pickled here; a tenth of them goes each way to workers.
        seed: the same objects for the same.
    """
    import multiprocessing

    wrong: list[str] = []
    options = settings(
        max_examples=max(count // 10, 1),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )

    def compare(what: str, description: Drawn, found: set[str] | None, truth: set[str]) -> None:
        if found is not None:
            assert found == truth, f"{what} {description!r}: {sorted(found)}, not {sorted(truth)}"

    def tried(test: Any) -> None:
        try:
            test()
        except AssertionError as error:
            wrong.append(str(error).splitlines()[0])
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    pool = multiprocessing.get_context("fork").Pool(1)

    @seeded(seed)
    @settings(options, max_examples=count)
    @given(drawn(sorted(NODES), sorted(LEAVES)), st.sampled_from(sorted(TASKS)))
    def by_pickle(description: Drawn, kind: str) -> None:
        task = TASKS[kind](built(description))
        truth = shipped(task)
        compare(kind, description, said(lambda: _pickled(*task)), truth)

    @seeded(seed)
    @options
    @given(drawn(sorted(NODES), sorted(LEAVES)))
    def by_loky(description: Drawn) -> None:
        item = built(description)
        compare("loky argument", description, said(lambda: _by_loky(ignore, item)), shipped(item))

    @seeded(seed)
    @options
    @given(drawn(sorted(NODES), sorted(LEAVES)))
    def from_loky(description: Drawn) -> None:
        truth = returned(built(description))
        compare("loky result", description, said(lambda: _by_loky(build, description)), truth)

    @seeded(seed)
    @options
    @given(drawn(FORKING, SHARED))
    def by_pool(description: Drawn) -> None:
        item = built(description)
        found = said(lambda: pool.apply(ignore, (item,)))
        compare("pool argument", description, found, shipped(item))

    with pool:
        for test in (by_pickle, by_loky, from_loky, by_pool):
            tried(test)
    return wrong


def main(arguments: list[str]) -> int:
    """``containers.py SEED COUNT``: so many objects, a tenth of them each way to workers."""
    seed, count = int(arguments[0]), int(arguments[1])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    here = os.path.dirname(os.path.abspath(__file__))
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    wrong = look(count, seed)
    print(
        f"containers: {count} objects pickled, {count // 10} sent each of three ways "
        f"from seed {seed}, wrong: {len(wrong)}"
    )
    print("".join(f"  {one}\n" for one in wrong), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    import containers

    sys.exit(containers.main(sys.argv[1:]))
