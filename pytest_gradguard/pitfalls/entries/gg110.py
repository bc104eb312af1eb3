"""GG110: a built Keras optimizer is pickled on its own."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG110",
    name="optimizer-state-lost",
    title="A Keras optimizer that is sent on its own arrives unbuilt",
    severity=Severity.WARNING,
    happens=(
        "The copy of an optimizer with moments (Adam, SGD with momentum) has `built=False` and "
        "`iterations` 0: its step count and its moments are gone, and the only sign is a "
        "warning in the worker. Inside its compiled model the same optimizer keeps its state."
    ),
    why=(
        "The moments exist only once an optimizer is built for a model's weights. The copy "
        "belongs to no model, so it has fewer variables than were saved, and Keras then loads "
        "none of them. (Plain SGD has no moments and keeps its step count.)"
    ),
    fix=(
        "Send the compiled model that the optimizer belongs to; or send its configuration and "
        "its variables' values, and build the copy in the worker before use."
    ),
    bad="""\
import keras
from joblib import Parallel, delayed


def steps(optimizer):
    return int(optimizer.iterations)


weight = keras.Variable([1.0])
optimizer = keras.optimizers.Adam()
optimizer.build([weight])
optimizer.apply([keras.ops.ones(1)])
print(int(optimizer.iterations))  # prints: 1
print(Parallel(n_jobs=2)(delayed(steps)(optimizer) for _ in range(2)))  # prints: [0, 0]
""",
    good="""\
import keras
from joblib import Parallel, delayed


def steps(config, values, weight):
    optimizer = keras.optimizers.Adam.from_config(config)
    optimizer.build([keras.Variable(weight)])
    for variable, value in zip(optimizer.variables, values):
        variable.assign(value)
    return int(optimizer.iterations)


weight = keras.Variable([1.0])
optimizer = keras.optimizers.Adam()
optimizer.build([weight])
optimizer.apply([keras.ops.ones(1)])
values = [variable.numpy() for variable in optimizer.variables]
tasks = (delayed(steps)(optimizer.get_config(), values, weight.numpy()) for _ in range(2))
print(Parallel(n_jobs=2)(tasks))  # prints: [1, 1]
""",
    lint=None,
    runtime=(
        "When a built Keras 3 optimizer that has taken steps is pickled on its own for a "
        "worker, or on its way back from one."
    ),
    silence="If the worker is meant to start with a fresh optimizer.",
    links=(links.KERAS_SAVING, links.JOBLIB_PARALLEL),
)
