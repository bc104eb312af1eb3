"""The frameworks whose arrays carry gradients, or lie on a GPU: one module or package each.

Each holds a `FRAMEWORK`; this folder is the list of ours. They stand on the kernel alone.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from pytest_gradguard.runtime.kernel import frameworks

for _name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    frameworks.register_ours(import_module(f"{__name__}.{_name}").FRAMEWORK)
