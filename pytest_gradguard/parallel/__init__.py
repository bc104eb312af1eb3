"""joblib's `Parallel`, with results that carry gradients.

::

    from pytest_gradguard.parallel import Parallel, delayed

    out = Parallel(n_jobs=2)(delayed(add)(x, k) for k in range(2))
    (out[0] + out[1]).mean().backward()  # x.grad is what one process would give

docs/parallel.md says what it costs, when it pays, and what it refuses.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import joblib
from joblib import delayed

from pytest_gradguard.parallel.refusals import UnsupportedGradientError

__all__ = ["Parallel", "UnsupportedGradientError", "delayed"]


class Parallel(joblib.Parallel):  # type: ignore[misc]
    """joblib's `Parallel`, with its arguments and results, and gradients of the results.

    Tensors that require grad, and modules with such parameters, may be anywhere in the
    arguments of a task. A backward pass through the results runs the tasks once more in the
    workers, and their backward passes after them.
    """

    def __call__(self, iterable: Iterable[Any]) -> Any:
        """Run the tasks, as `joblib.Parallel` does.

        Raises:
            UnsupportedGradientError: the gradients of a task would be wrong or missing.
        """
        if "torch" not in sys.modules:
            return super().__call__(iterable)
        from pytest_gradguard.parallel.call import Call, SizedTasks, Tasks

        call = Call(self)
        tasks = (SizedTasks if hasattr(iterable, "__len__") else Tasks)(iterable, call)
        outputs = super().__call__(tasks)
        if getattr(self, "return_generator", False):
            return call.restore_one_by_one(outputs)
        return call.restore(outputs)
