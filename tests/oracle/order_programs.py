"""Draws programs in which it depends on the way taken what a process did before it forks.

Options, early returns, exceptions, loops and helpers decide whether the parent uses CUDA or
computes before it hands work to other processes, and what these do. Nothing is computed in
earnest: there are stand-ins for torch and for what starts processes (`stand_ins`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from textwrap import indent

HEADER = """\
import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import Pool, Process, get_context

import torch
from joblib import Parallel, delayed


def risky(name):
    if name in os.environ:
        raise ValueError("risk")


def on_gpu(k):
    return float(torch.ones(3, device="cuda").sum()) + k


def on_cpu(k):
    a = torch.ones(500, 500)
    return float((a @ a).sum()) + k


def alone(k):
    torch.set_num_threads(1)
    a = torch.ones(500, 500)
    return float((a @ a).sum()) + k


def small(k):
    return k + 1


def told(k):
    if "DEEP" in os.environ:
        return on_gpu(k)
    return small(k)


def within(k, device):
    a = torch.ones(500, 500, device=device)
    return float((a @ a).sum()) + k


def warm(wanted=True):
    if not wanted:
        return
    torch.zeros(1, device="cuda")


def pick(wanted):
    if wanted:
        return "cuda"
    return "cpu"


def several(n):
    return n > 1


READY = False


def ready():
    global READY
    if READY:
        return
    torch.zeros(1, device="cuda")
    READY = True


def spread(work, workers, method="fork"):
    if workers < 2:
        return [work(i) for i in range(3)]
    with get_context(method).Pool(workers) as pool:
        return pool.map(work, range(3))


"""
WORKERS = ("on_gpu", "on_cpu", "alone", "small", "told")
NUMBERS = (0, 2, 1, 3, 8, -1)
DEVICES = ("cpu", "cuda", "cuda:1", "mps")
MODES = ("train", "test", "both", "other")
_DEFAULT = 1
"""Which of `NUMBERS` a command has by default."""


@dataclass(frozen=True)
class Drawn:
    """A program, and what it may be given.

    Attributes:
        options: the values that each option may have, by its name. A program has one function,
            `main`, which takes them; or, where `is_script`, it reads them as a command line.
        variables: the environment variables that may be set.
    """

    source: str
    options: dict[str, tuple[object, ...]]
    variables: tuple[str, ...]
    is_script: bool

    @property
    def usual(self) -> dict[str, object]:
        """What options are that nobody gives, and a device and a mode that nobody asks for."""
        found = {name: self.options[name][0] for name in ("device", "mode") if name in self.options}
        if self.is_script and "workers" in self.options:
            found["workers"] = self.options["workers"][_DEFAULT]
        return found


@dataclass
class _Names:
    """What the statements that are drawn may use, as expressions."""

    flags: list[str]
    numbers: list[str]
    devices: list[str]
    modes: list[str]
    pools: list[str] = field(default_factory=list)
    """Pools, or None."""
    methods: list[str] = field(default_factory=list)
    """Methods without arguments."""
    kinds: list[str] = field(default_factory=list)
    """Strings that are the kind of a device."""
    loop: bool = False
    """Whether a loop may be left here."""

    def add_device(self, name: str, chosen: str) -> None:
        """`name` is the device that `chosen` makes."""
        self.devices.append(name)
        self.kinds.append(f"{name}.type" if chosen.startswith("torch.device") else name)


_MOST_RISKS = 3
"""How many environment variables may make a program raise."""


def draw(seed: int) -> Drawn:
    """The program with this number."""
    return _Drawer(Random(seed)).program()


class _Drawer:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.made = 0
        self.risks: list[str] = []
        self.helpers: dict[str, tuple[list[str], str]] = {}
        """Functions: what kind of thing each is given, and their text."""
        self.left = 0
        """How many statements may still be drawn."""

    def program(self) -> Drawn:
        options: dict[str, tuple[object, ...]] = {
            "fast": (False, True),
            "check": (False, True),
            "workers": NUMBERS,
            "device": DEVICES,
            "mode": MODES,
        }
        kept = self.random.sample(list(options), self.random.randint(2, 4))
        options = {name: values for name, values in options.items() if name in kept}
        shape = self.random.choice(
            (self.function, self.script, self.table, self.trainer, self.trainer)
        )
        for _ in range(self.random.choice((0, 0, 1, 2))):
            self.helper()
        source, is_script = shape(options)
        for name, (_, text) in reversed(self.helpers.items()):  # later ones call earlier ones
            if f"{name}(" in source:
                source = f"{text}\n\n{source}"
        source = HEADER + source
        variables = ("DEEP", *self.risks) if "told" in source[len(HEADER) :] else (*self.risks,)
        return Drawn(source, options, variables, is_script)

    def helper(self) -> None:
        """A function that may be called with whatever there is."""
        kinds = self.random.sample(("flags", "numbers", "devices"), self.random.randint(1, 2))
        given = [f"{kind[:-1]}{number}" for number, kind in enumerate(kinds)]
        names = _Names([], [], [], [])
        for name, kind in zip(given, kinds, strict=True):
            getattr(names, kind).append(name)
        names.kinds += names.devices
        text = self.body(names, 3, spreads=self.random.random() < 0.5)
        if self.random.random() < 0.6:
            text += f"    return {self.condition(names)}\n"
        name = f"helper{len(self.helpers)}"
        self.helpers[name] = (kinds, f"def {name}({', '.join(given)}):\n{text}")

    def called(self, names: _Names) -> str:
        """A call of a helper; empty where there is none that can be called."""
        for name, (kinds, _) in self.random.sample(list(self.helpers.items()), len(self.helpers)):
            have = [list(getattr(names, kind)) for kind in kinds]
            for kind, those in zip(kinds, have, strict=True):
                those += {"flags": ["True"], "numbers": ["2"], "devices": ['"cpu"']}[kind]
            return f"{name}({', '.join(map(self.random.choice, have))})"
        return ""

    # Shapes of programs

    def function(self, options: dict[str, tuple[object, ...]]) -> tuple[str, bool]:
        """A function that nobody calls."""
        names = self.names_of(options, "")
        return f"def main({', '.join(options)}):\n" + self.body(names, 9), False

    def table(self, options: dict[str, tuple[object, ...]]) -> tuple[str, bool]:
        """A function that is given its options in a dict."""
        names = self.names_of(options, "")
        for kept in (names.flags, names.numbers, names.devices, names.modes, names.kinds):
            kept[:] = [f'config["{name}"]' for name in kept]
        given = ", ".join(f'"{name}": {name}' for name in options)
        text = "def run(config):\n" + self.body(names, 9)
        return text + f"\n\ndef main({', '.join(options)}):\n    run({{{given}}})\n", False

    def script(self, options: dict[str, tuple[object, ...]]) -> tuple[str, bool]:
        """A command that reads its options itself."""
        names = self.names_of(options, "args.")
        read = _parser(options)
        if self.random.random() < 0.5:
            read += f"args.cuda = {self.condition(names)} and torch.cuda.is_available()\n"
            names.flags.append("args.cuda")
        if self.random.random() < 0.3:
            read += f"args.place = {self.device(names)}\n"
            names.devices.append("args.place")
        text = "def main():\n" + indent(read, "    ") + self.body(names, 9)
        return text + '\n\nif __name__ == "__main__":\n    main()\n', True

    def trainer(self, options: dict[str, tuple[object, ...]]) -> tuple[str, bool]:
        """A class that keeps its options."""
        names = self.names_of(options, "self.")
        kept = "".join(f"        self.{name} = {name}\n" for name in options)
        if self.random.random() < 0.6:
            chosen = self.device(self.names_of(options, ""))
            kept += f"        self.place = {chosen}\n"
            names.add_device("self.place", chosen)
        if self.random.random() < 0.3:
            condition = self.condition(self.names_of(options, ""))
            kept += f"        self.pool = Pool(2) if {condition} else None\n"
            names.pools.append("self.pool")
        methods = {}
        for name in ("prepare", "evaluate")[: self.random.randint(0, 2)]:
            methods[name] = indent(self.body(names, 4), "    ")
            names.methods.append(f"self.{name}()")
        methods["run"] = indent(self.body(names, 7), "    ")
        text = f"class Trainer:\n    def __init__(self, {', '.join(options)}):\n{kept}"
        for name, body in methods.items():
            if name == "run" or f"self.{name}()" in methods["run"]:
                text += f"\n    def {name}(self):\n{body}"
        if self.random.random() < 0.5:
            call = f"Trainer({', '.join(options)}).run()"
            return text + f"\n\ndef main({', '.join(options)}):\n    {call}\n", False
        given = ", ".join(f"args.{name}" for name in options)
        text += "\n\ndef main():\n" + indent(_parser(options), "    ")
        text += f"    Trainer({given}).run()\n"
        return text + '\n\nif __name__ == "__main__":\n    main()\n', True

    @staticmethod
    def names_of(options: dict[str, tuple[object, ...]], prefix: str) -> _Names:
        def those(*names: str) -> list[str]:
            return [prefix + name for name in names if name in options]

        devices = those("device")
        return _Names(
            *(those("fast", "check"), those("workers"), devices, those("mode")),
            kinds=list(devices),
        )

    # Statements

    def body(self, names: _Names, most: int, *, spreads: bool = True) -> str:
        """The body of a function, of at most about `most` statements."""
        self.left = self.random.randint(3, most)
        own = deepcopy(names)
        text = ""
        while self.left > 0:
            text += self.statement(own, 0)
        if spreads and not any(
            door in text for door in ("Pool(", "Process(", "Parallel(", "Executor(")
        ):
            text += self.spread(own)
        return indent(text, "    ")

    def block(self, names: _Names, depth: int, last: str = "") -> str:
        """What is indented: what is bound in it is not known behind it."""
        inner = deepcopy(names)
        text = ""
        for _ in range(self.random.choice((1, 1, 1, 2))):
            text += self.statement(inner, depth + 1)
        return indent(text + last, "    ")

    def statement(self, names: _Names, depth: int) -> str:
        self.left -= 1
        plain: list[Callable[[_Names], str]] = [
            *[self.touch] * 3,
            *[self.compute] * 2,
            *[self.spread] * 5,
            self.bind,
            self.bind,
            self.claim,
        ]
        nested: list[Callable[[_Names, int], str]] = [
            *[self.branch] * 5,
            self.leave,
            self.leave,
            self.attempt,
            self.repeat,
            self.match,
        ]
        if depth < 3 and self.random.random() < 0.5:
            return self.random.choice(nested)(names, depth)
        return self.random.choice(plain)(names)

    def touch(self, names: _Names) -> str:
        """What uses CUDA, or may."""
        ways = ['torch.zeros(1, device="cuda")\n', "torch.ones(2).cuda()\n", "warm()\n"]
        ways += ["torch.cuda.synchronize()\n", "ready()\n"]
        if names.devices:
            device = self.random.choice(names.devices)
            ways += [f"torch.zeros(1, device={device})\n", f"torch.ones(2).to({device})\n"] * 2
        if names.flags:
            ways.append(f"warm({self.random.choice(names.flags)})\n")
        return self.random.choice(ways)

    def compute(self, names: _Names) -> str:
        ways = ["on_cpu(0)\n", "a = torch.ones(500, 500) @ torch.ones(500, 500)\n", "small(1)\n"]
        if names.methods:
            ways += [f"{self.random.choice(names.methods)}\n"] * 4
        if call := self.called(names):
            ways += [f"{call}\n"] * 4
        if names.devices:
            ways.append(f"within(0, {self.random.choice(names.devices)})\n")
        return self.random.choice(ways)

    def spread(self, names: _Names) -> str:
        """What hands work to other processes."""
        work = self.random.choice(WORKERS)
        count = self.random.choice([*(f"{one} or 2" for one in names.numbers), "2", "2"])
        method = self.random.choice(("fork", "fork", "spawn"))
        name = self.fresh("pool")
        if names.pools and self.random.random() < 0.5:
            pool = self.random.choice(names.pools)
            return (
                f"if {pool} is not None:\n    {pool}.map({work}, range(3))\n"
                f"else:\n    [{work}(i) for i in range(3)]\n"
            )
        number = self.random.choice([*names.numbers, "2"])
        condition = self.condition(names)
        ways = [
            f"spread({work}, {number})\n",
            f'spread({work}, {number}, "spawn" if {condition} else "fork")\n',
            f"with Pool(2) as {name}:\n"
            f"    go = {name}.map if {condition} else map\n"
            f"    list(go({work}, range(3)))\n",
            f"{name} = [Process(target={work}, args=(i,)) for i in range({number})]\n"
            f"for one in {name}:\n    one.start()\n",
            f"for one in range({number}):\n"
            f"    {name} = Process(target={work}, args=(one,))\n    {name}.start()\n",
            f"with Pool(2) as {name}:\n    {name}.map({work}, range(3))\n",
            f'with get_context("{method}").Pool(2) as {name}:\n    {name}.map({work}, range(3))\n',
            f"with ProcessPoolExecutor(2) as {name}:\n    list({name}.map({work}, range(3)))\n",
            f"with ProcessPoolExecutor(2) as {name}:\n    {name}.submit({work}, 1).result()\n",
            f"{name} = Process(target={work}, args=(1,))\n{name}.start()\n{name}.join()\n",
            f'Parallel(2, backend="multiprocessing")(delayed({work})(i) for i in range(3))\n',
            f'Parallel({count}, backend="multiprocessing")(delayed({work})(i) for i in range(3))\n',
            f"Parallel(n_jobs=2)(delayed({work})(i) for i in range(3))\n",
            f'Parallel(2, backend="threading")(delayed({work})(i) for i in range(3))\n',
        ]
        if names.devices:
            device = self.random.choice(names.devices)
            ways += [
                f"with Pool(2) as {name}:\n"
                f"    {name}.starmap(within, [(i, {device}) for i in range(3)])\n",
                f"{name} = Process(target=within, args=(1, {device}))\n"
                f"{name}.start()\n{name}.join()\n",
                f"with Pool(2) as {name}:\n"
                f"    {name}.map(partial(within, device={device}), range(3))\n",
                f'{name} = "spawn" if {device} == "cuda" else "fork"\n'
                f"with get_context({name}).Pool(2) as {name}p:\n"
                f"    {name}p.starmap(within, [(i, {device}) for i in range(3)])\n",
            ]
        return self.random.choice(ways)

    def bind(self, names: _Names) -> str:
        """A name for a condition, a device, a number, or a pool."""
        name = self.fresh("x")
        kind = self.random.choice(("flag", "device", "device", "pool", "number", "work"))
        if kind == "flag":
            text = f"{name} = {self.condition(names)}\n"
            names.flags.append(name)
        elif kind == "device":
            chosen = self.device(names)
            text = f"{name} = {chosen}\n"
            names.add_device(name, chosen)
        elif kind == "number":
            text = f"{name} = 2 if {self.condition(names)} else 0\n"
            names.numbers.append(name)
        elif kind == "pool":
            text = f"{name} = Pool(2) if {self.condition(names)} else None\n"
            names.pools.append(name)
        else:
            one, other = self.random.sample(WORKERS, 2)
            text = f"{name} = {one} if {self.condition(names)} else {other}\n"
            text += f"with Pool(2) as {name}p:\n    {name}p.map({name}, range(3))\n"
        return text

    def claim(self, names: _Names) -> str:
        """What ends the program unless it holds."""
        return f"assert {self.condition(names)}\n"

    def device(self, names: _Names) -> str:
        condition = self.condition(names)
        ways = [
            f'"cuda" if {condition} else "cpu"',
            f'torch.device("cuda" if {condition} else "cpu")',
            f"pick({condition})",
            f'"cpu" if {condition} else "cuda:0"',
            f'{condition} and "cuda" or "cpu"',
        ]
        return self.random.choice(ways)

    # Statements with blocks

    def branch(self, names: _Names, depth: int) -> str:
        text = f"if {self.condition(names)}:\n{self.block(names, depth)}"
        if self.random.random() < 0.2:
            text += f"elif {self.condition(names)}:\n{self.block(names, depth)}"
        return text + self.perhaps(0.4, "else", names, depth)

    def perhaps(self, chance: float, head: str, names: _Names, depth: int) -> str:
        """A further block of a statement."""
        return f"{head}:\n{self.block(names, depth)}" if self.random.random() < chance else ""

    def leave(self, names: _Names, depth: int) -> str:
        """One way that does not come back."""
        ways = ["return\n", "return\n", 'raise SystemExit("no")\n']
        if names.loop:
            ways += ["break\n", "continue\n"] * 2
        last = self.random.choice(ways)
        return f"if {self.condition(names)}:\n{self.block(names, depth, last)}"

    def attempt(self, names: _Names, depth: int) -> str:
        if len(self.risks) == _MOST_RISKS:
            return self.branch(names, depth)
        self.risks.append(f"RISK{len(self.risks)}")
        risk = f'    risky("{self.risks[-1]}")\n'
        body = self.block(names, depth)
        body = risk + body if self.random.random() < 0.5 else body + risk
        kind = self.random.choice(("except ValueError:", "except Exception:", "except:"))
        last = self.random.choice(("", "", "return\n", "raise\n"))
        text = f"try:\n{body}{kind}\n{self.block(names, depth, last)}"
        text += self.perhaps(0.25, "else", names, depth)
        return text + self.perhaps(0.25, "finally", names, depth)

    def repeat(self, names: _Names, depth: int) -> str:
        before, names.loop = names.loop, True
        item, count = self.fresh("i"), self.fresh("n")
        head = self.random.choice(("for", "for", "range", "list", "while"))
        if head == "for":
            text = f"for {item} in range(2):\n{self.block(names, depth)}"
        elif head == "range" and names.numbers:
            text = f"for {item} in range({self.random.choice(names.numbers)}):\n"
            text += self.block(names, depth)
        elif head == "list":
            text = f'for {item} in ("cpu", "cuda"):\n'
            inner = deepcopy(names)
            inner.add_device(item, "")
            text += self.block(inner, depth)
        else:
            text = f"{count} = 2\nwhile {count}:\n    {count} -= 1\n{self.block(names, depth)}"
        names.loop = before
        return text + self.perhaps(0.15, "else", names, depth)

    def match(self, names: _Names, depth: int) -> str:
        if not names.modes:
            return self.branch(names, depth)
        one, other = self.random.sample(MODES, 2)
        text = f"match {self.random.choice(names.modes)}:\n"
        text += f'    case "{one}":\n{indent(self.block(names, depth), "    ")}'
        rest = self.random.choice((f'"{other}"', "_"))
        text += f"    case {rest}:\n{indent(self.block(names, depth), '    ')}"
        return text

    # Conditions

    def condition(self, names: _Names, depth: int = 0) -> str:
        if depth < 2 and self.random.random() < 0.2:
            one, other = (self.condition(names, depth + 1) for _ in range(2))
            return f"({one} {self.random.choice(('and', 'or'))} {other})"
        ways = ["torch.cuda.is_available()"] if self.random.random() < 0.15 else []
        if self.random.random() < 0.1 and (call := self.called(names)):
            return call
        for flag in names.flags:
            ways += [flag, flag, f"not {flag}"]
        for number in names.numbers:
            bound = self.random.choice((1, 2, 3))
            ways += [
                f"{number} {self.random.choice(('<', '<=', '>', '>=', '==', '!='))} {bound}",
                f"{number} > 1",
                f"several({number})",
                number,
            ]
        for kind in names.kinds:
            ways += [f'{kind} == "cuda"', f'{kind} != "cpu"', f'"cuda" in {kind}']
        for mode in names.modes:
            chosen = self.random.choice(MODES)
            ways += [f'{mode} == "{chosen}"', f'{mode} in ("{chosen}", "both")']
        return self.random.choice(ways or ["torch.cuda.is_available()"])

    def fresh(self, name: str) -> str:
        self.made += 1
        return f"{name}{self.made}"


def _parser(options: dict[str, tuple[object, ...]]) -> str:
    text = "parser = argparse.ArgumentParser()\n"
    for name, values in options.items():
        if values == (False, True):
            text += f'parser.add_argument("--{name}", action="store_true")\n'
        elif isinstance(values[0], int):
            text += f'parser.add_argument("--{name}", type=int, default={values[_DEFAULT]})\n'
        else:
            text += f'parser.add_argument("--{name}", default="{values[0]}")\n'
    return text + "args = parser.parse_args()\n"
