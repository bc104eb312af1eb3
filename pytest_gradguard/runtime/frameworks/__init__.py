"""The frameworks whose arrays carry gradients, or are on a GPU: one module or package each.

Each has a `FRAMEWORK`; this folder is the list of ours. They import only the kernel.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from pytest_gradguard.runtime.kernel import frameworks

for _name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    frameworks.register_ours(import_module(f"{__name__}.{_name}").FRAMEWORK)
