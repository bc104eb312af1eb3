"""What all tests share."""

# A run of pytest inside this process (pytester) forgets the modules that it has imported: the
# guard's own must not be among them.
import pytest_gradguard.runtime.dispatch  # noqa: F401

pytest_plugins = ["pytester"]
