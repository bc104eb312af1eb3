"""How bad a pitfall is. It stands alone: settings need it long before there is a finding."""

from __future__ import annotations

import enum


class Severity(enum.IntEnum):
    """How bad a pitfall is; ordered, so that ``finding.severity >= Severity.WARNING`` works."""

    INFO = 0
    WARNING = 1
    ERROR = 2

    @property
    def label(self) -> str:
        """The lower-case name that reports and options use: ``info``, ``warning``, ``error``."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> Severity:
        """The severity named `text`.

        Raises:
            ValueError: `text` is none of ``info``, ``warning``, ``error``.
        """
        for severity in cls:
            if severity.label == text:
                return severity
        allowed = ", ".join(severity.label for severity in cls)
        raise ValueError(f"unknown severity {text!r} (allowed: {allowed})")
