"""The standard library and small tools, as far as values pass through them."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row
from gradguard_lint.words import words

LAST_BASES = words("builtins.object abc.ABC typing.Generic typing.Protocol")
"""Bases that come last in an MRO."""

LIBRARY = Library(
    tops=(
        "functools",
        *words(
            "itertools contextlib copy os sys argparse types tqdm dataclasses enum collections "
            "typing operator importlib click attrs pydantic platform pytest unittest mock"
        ),
    ),
    bases={"typing.NamedTuple": "tuple", "pydantic.BaseModel": "record"},
    constants={
        "os.name": "posix",
        "sys.platform": "linux",
        "typing.TYPE_CHECKING": False,
        "typing_extensions.TYPE_CHECKING": False,
    },
    rows=(
        Row(
            "copy.copy builtins.sorted builtins.set builtins.frozenset",
            "identity",
            argument=(0, "iterable"),
        ),
        Row("functools.lru_cache functools.cache", "keeping", flag="functools.cache"),
        Row("builtins.reversed", "identity", argument=(0, "sequence"), flag="reversed"),
        Row(
            "tqdm.tqdm tqdm.auto.tqdm tqdm.notebook.tqdm tqdm.contrib.tqdm tqdm.std.tqdm "
            "tqdm.autonotebook.tqdm tqdm.tqdm_notebook rich.progress.track numba.njit numba.jit "
            "itertools.cycle progressbar.progressbar",
            "identity",
            argument=(0, "iterable"),
            keeps=True,
        ),
        Row("itertools.islice", "islice", argument=(0, "iterable"), keeps=True),
        Row("contextlib.contextmanager contextlib.asynccontextmanager", "context-manager"),
        Row("contextlib.ExitStack contextlib.AsyncExitStack", "thing", kind="exit-stack"),
        Row("contextlib.suppress", "thing", kind="suppress"),
        Row("dataclasses.field", "made-of", kind="field"),
        Row(
            "attrs.field attr.field attr.ib attr.attrib pydantic.Field pydantic.fields.Field",
            "made-of",
            kind="field",
            argument=(0, "default"),
        ),
        Row("attrs.Factory attr.Factory", "made-of", kind="field", argument=(0, "factory")),
        Row("copy.deepcopy", "copied"),
        Row("builtins.*", "builtin"),
        Row("functools.partial", "partial"),
        Row("functools.partialmethod", "partial", flag="method"),
        Row("functools.singledispatch functools.singledispatchmethod", "dispatch"),
        Row("collections.namedtuple typing.NamedTuple", "named-tuple"),
        Row("collections.defaultdict", "default-dict"),
        Row("dataclasses.replace copy.replace attrs.evolve attr.evolve", "replaced"),
        Row("dataclasses.asdict attr.asdict attrs.asdict", "fields-as-dict"),
        Row("dataclasses.fields", "fields"),
        Row("operator.attrgetter operator.itemgetter operator.methodcaller", "getter"),
        Row("importlib.util.find_spec", "asks-module"),
        Row("importlib.import_module", "import-module"),
        Row("platform.system", "told", flag="Linux"),
        Row("enum.auto", "distinct"),
        Row("collections.deque", "identity", argument=(0, "iterable"), flag="list"),
        Row("contextlib.closing", "identity", argument=(0, "thing"), keeps=True),
        Row("functools.reduce", "fold"),
        Row(
            "operator.concat operator.iconcat "
            "operator.add operator.mul operator.sub operator.truediv operator.iadd operator.matmul",
            "operator",
        ),
        Row("functools.wraps functools.update_wrapper", "wraps"),
        Row("itertools.chain itertools.chain.from_iterable", "chain", keeps=True),
        Row("itertools.product itertools.combinations", "product"),
        Row("itertools.repeat", "repeat"),
        Row("os.environ.get os.getenv", "environ-get"),
        Row("os.environ.pop os.unsetenv", "environ-pop"),
        Row("os.environ.setdefault os.putenv os.environ.update", "environ-update"),
        Row("unittest.mock.patch.dict mock.patch.dict", "environ-patch"),
        Row("os.cpu_count", "asks-cpus"),
        Row("os.register_at_fork", "at-fork"),
        Row("math.*", "number"),
        Row("time.time time.perf_counter time.monotonic time.process_time", "number", flag="anew"),
        Row("os.getpid", "process-number"),
        Row(
            "sys.exit os._exit os.abort builtins.quit builtins.exit os.execl os.execle os.execlp "
            "os.execlpe os.execv os.execve os.execvp os.execvpe argparse.ArgumentParser.error "
            "argparse.ArgumentParser.exit click.Context.abort click.Context.exit "
            "click.Context.fail pytest.exit",
            "leave",
        ),
        Row("pytest.fail pytest.skip pytest.xfail", "leave", flag="raises"),
        Row(
            "unittest.TestCase.fail unittest.TestCase.skipTest "
            "unittest.IsolatedAsyncioTestCase.fail unittest.IsolatedAsyncioTestCase.skipTest",
            "leave",
            flag="raises",
        ),
        Row("argparse.ArgumentParser", "parser"),
        Row("click.Context click.get_current_context", "click-context"),
        Row("click.option click.argument", "option"),
        Row("types.SimpleNamespace argparse.Namespace", "namespace"),
    ),
)
