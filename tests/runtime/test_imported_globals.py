"""GG109: names of other modules that a worker's functions reach by imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from children import run_python

pytest.importorskip("torch")
pytest.importorskip("joblib")

FILES = {
    "app/settings.py": """
        import logging
        from dataclasses import dataclass

        cfg = {"rate": 0.5, "deep": {"er": 1}, "same": 1}
        RATE = 0.5
        NAMES = ["a", "b"]
        cache = {}
        log = logging.getLogger("app")


        class Config:
            depth = 3


        @dataclass
        class Options:
            rate: float = 0.5


        options = Options()


        def set_rate(rate):
            global RATE
            RATE = rate


        def get_rate():
            return RATE
    """,
    "app/__init__.py": "from .settings import cfg as exported, options\n",
    "app/deep.py": """
        from app import exported as settings


        def rate():
            return settings["rate"]
    """,
    "app/tasks.py": """
        import functools

        import app
        from app import settings
        from app.settings import NAMES, RATE, Config, cache, cfg, log, options

        from . import deep


        def traced(function):
            @functools.wraps(function)
            def wrapper(*args):
                return function(*args)

            return wrapper


        def from_import(): return cfg["rate"]
        def whole(): return dict(cfg)
        def a_list(): return NAMES[0]
        def module(): return settings.cfg["rate"]
        def package(): return app.exported["rate"]
        def a_class(): return Config.depth
        def an_object(): return options.rate
        def object_of_package(): return app.options.rate
        def other_module(): return deep.rate()
        def getter(): return settings.get_rate()


        def local_import():
            import app.settings

            return app.settings.cfg["rate"]


        def local_alias():
            import app.settings as chosen

            return chosen.RATE


        def local_name():
            from .settings import cfg as chosen

            return chosen.get("rate")


        @traced
        def decorated(): return cfg["rate"]


        class Trainer:
            def run(self): return cfg["rate"]


        trainer = Trainer()


        # The same values in both processes.
        def bound_at_import(): return RATE
        def unchanged_key(): return cfg["same"], cfg["deep"].get("other")


        def local_unchanged():
            from app.settings import cfg as chosen

            return chosen["same"]


        def not_of_the_global(cfg={"rate": 1}): return cfg["rate"]


        def set_by_the_task():
            from app import settings

            settings.RATE = 2
            return settings.RATE


        def logs():
            log.info("working")
            cache["x"] = 1


        def closure():
            def by_value():
                return cfg["rate"]

            return by_value
    """,
    "main.py": """
        import json
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        import torch
        from app import settings, tasks
        from joblib import Parallel, delayed
        from pytest_gradguard import guard


        def in_main():
            from app.settings import cfg as chosen

            return chosen["rate"]


        def main():
            settings.cfg["rate"] = settings.options.rate = 0.1
            settings.cfg["deep"]["er"] = 2
            settings.NAMES[0] = "z"
            settings.Config.depth = 4
            settings.set_rate(0.2)
            settings.cache["main"] = 1
            functions = {
                name: one
                for name, one in vars(tasks).items()
                if getattr(one, "__module__", "") == "app.tasks" and name != "traced"
            }
            del functions["Trainer"], functions["trainer"]
            functions |= {
                "in_main": in_main,
                "method": tasks.trainer.run,
                "closure": tasks.closure(),
            }
            told = {}
            for name, function in functions.items():
                with guard("record") as report:
                    there = Parallel(2)(delayed(function)() for _ in range(2))[0]
                found = [one.message for one in report.findings if one.code == "GG109"]
                told[name] = [there != function(), found]
            for start in ("spawn", "fork"):
                context = multiprocessing.get_context(start)
                with guard("record") as report, ProcessPoolExecutor(1, context) as pool:
                    there = pool.submit(tasks.from_import).result()
                told[start] = [there != tasks.from_import(), [one.code for one in report.findings]]
            print(json.dumps(told))


        if __name__ == "__main__":
            main()
    """,
}
STALE = [
    "from_import",
    "whole",
    "a_list",
    "module",
    "package",
    "a_class",
    "an_object",
    "object_of_package",
    "other_module",
    "getter",
    "local_import",
    "local_alias",
    "local_name",
    "decorated",
    "in_main",
    "method",
    "spawn",
]
EQUAL = [
    "bound_at_import",
    "unchanged_key",
    "local_unchanged",
    "not_of_the_global",
    "set_by_the_task",
    "logs",
    "closure",
    "fork",
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from textwrap import dedent

    folder = tmp_path_factory.mktemp("program")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    done = run_python(Path("main.py"), folder=folder, forked="torch")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_function_is_judged(told: Any) -> None:
    assert sorted(told) == sorted([*STALE, *EQUAL])


@pytest.mark.parametrize("name", STALE)
def test_a_stale_value_is_reported(told: Any, name: str) -> None:
    differs, found = told[name]
    assert differs
    assert found


@pytest.mark.parametrize("name", EQUAL)
def test_equal_values_are_not(told: Any, name: str) -> None:
    assert told[name] == [False, []]


def test_the_message_names_both_values(told: Any) -> None:
    (message,) = told["from_import"][1]
    assert message.startswith(
        "`app.tasks.cfg['rate']`, which `from_import` reads in loky workers, is 0.5 there and 0.1 "
        "here"
    )
