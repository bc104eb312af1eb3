"""The names by which the parts of the plugin know each other, and its reports."""

from __future__ import annotations

ACTIVE = "gradguard-active"
"""The name under which the active part is registered."""

PROPERTY = "gradguard"
"""The user property of a test that carries its findings."""
