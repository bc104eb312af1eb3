"""What went to a worker is called as the program writes it."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
from joblib import delayed

from pytest_gradguard.runtime.kernel.callsite import Site, site_of
from pytest_gradguard.runtime.kernel.quoting import quoted
from pytest_gradguard.runtime.kernel.tasks import parameter_of


def add(tensor: Any, number: Any = 0) -> Any:
    return tensor


def here(*given: Any) -> Site:
    return site_of(sys._getframe(1))


class Anything:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return self


x: Any = Anything()
pool: Any = Anything()


def called(site: Site, path: str = "args[0]") -> str:
    return str(quoted(site, path, parameter_of(add, path), "add"))


def test_the_expression_of_the_call() -> None:
    role = "parameter `tensor` of `add`"
    assert called(here(delayed(add)(x.clone(), 1))) == f"`x.clone()`, {role}"
    assert called(here(delayed(add)(number=1, tensor=x)), "kwargs['tensor']") == f"`x`, {role}"
    assert called(here(pool.submit(add, x[0]))) == f"`x[0]`, {role}"
    assert called(here(pool.apply_async(add, (x.y, 2)))) == f"`x.y`, {role}"
    assert called(here(pool.Process(target=add, args=(x,)))) == f"`x`, {role}"
    assert called(here(pool.spawn(add, (x,), 2))) == f"`x`, {role}"
    assert called(here(pool.spawn(nprocs=2, args=[x], fn=add))) == f"`x`, {role}"
    assert called(here(pool.start_processes(add, args=(x,), nprocs=2))) == f"`x`, {role}"
    assert called(here(pool.notebook_launcher(function=add, args=(x,)))) == f"`x`, {role}"
    assert called(here(pool.launch_agent(pool, add, [x]))) == f"`x`, {role}"
    assert called(here(pool.elastic_launch(pool, add)(x))) == f"`x`, {role}"
    assert called(here(pool.launch(add, x, 1))) == f"`x`, {role}"
    assert called(here(pool.add.remote(x, 1))) == f"`x`, {role}"


def test_what_stands_inside_it() -> None:
    site = here(delayed(add)(x, [x]))
    assert called(site, "args[0].encoder.weight").startswith("`x.encoder.weight`, ")
    assert called(here(delayed(add)(x or x)), "args[0]['w']").startswith("`(x or x)['w']`, ")


def test_tasks_that_were_made_before_in_the_same_function() -> None:
    tasks = [delayed(add)(x.detach(), k) for k in range(2)]
    assert called(here(pool(tasks))).startswith("`x.detach()`, ")


def two_kinds() -> Site:
    tasks = [delayed(add)(x.one), delayed(add)(x.two)]
    return here(pool(tasks))


def not_written_out() -> Site:
    many = (x, 1)
    return here(delayed(add)(*many))


def over_several_lines() -> Site:
    return here(
        delayed(add)(
            x(
                1,
            )
        )
    )


@pytest.mark.parametrize("make", [two_kinds, not_written_out, over_several_lines, here])
def test_a_doubt_leaves_the_parameter(make: Any) -> None:
    assert called(make()) == "parameter `tensor` of `add`"
    assert called(make(), "args[0].w") == "parameter `tensor.w` of `add`"


def test_captures_and_results() -> None:
    assert str(quoted(None, "closure['scale'].w", None, "f")) == "`scale.w`, captured by `f`"
    assert str(quoted(None, "globals['w']", None, "f")) == "`w`, captured by `f`"
    assert str(quoted(None, "result", None, "f")) == "the result of `f`"
    assert str(quoted(None, "result[0]", None, "f")) == "`result[0]` of `f`"
    assert str(quoted(None, "args[0]", None, "f")) == "argument 1 of `f`"


class Model:
    def step(self, batch: Any) -> Any:
        return batch

    def __call__(self, batch: Any) -> Any:
        return batch


@functools.wraps(add)
def decorated(*args: Any) -> Any:
    return add(*args)


@pytest.mark.parametrize(
    ("function", "index", "name"),
    [
        (add, 1, "number"),
        (add, 2, None),
        (Model().step, 0, "batch"),
        (Model(), 0, "batch"),
        (functools.partial(add, 1), 0, "number"),
        (functools.partial(Model().step), 0, "batch"),
        (decorated, 0, "tensor"),
        (len, 0, None),
        (dict, 0, None),
    ],
)
def test_the_parameter_of_a_function(function: Any, index: int, name: str | None) -> None:
    assert parameter_of(function, f"args[{index}].weight") == name
