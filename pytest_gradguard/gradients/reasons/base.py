"""The parts of a reason for a missing gradient."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pytest_gradguard.findings import TraceStep, display_path
from pytest_gradguard.runtime.kernel.callsite import Site


def at(site: Site | None) -> str:
    """`` at path:line``, or nothing if the place is unknown."""
    return "" if site is None else f" at {display_path(site.path)}:{site.line}"


def step(site: Site | None, message: str) -> tuple[TraceStep, ...]:
    """One step of a trace, or none if the place is unknown."""
    return () if site is None else (TraceStep(site.path, site.line, message),)


def in_number(text: str, *, many: bool) -> str:
    """`text` about one tensor, or about several: ``[it was|they were]`` becomes one of them."""
    return re.sub(r"\[([^\[\]|]*)\|([^\[\]|]*)\]", r"\2" if many else r"\1", text)


OR_ALLOW = "or name [it|them] in `allow_none` if [it is|they are] not meant to learn"


@dataclass(frozen=True)
class Reason:
    """Why a tensor has no gradient; `site` is the line to look at, if known.

    Attributes:
        kind: its name in findings.
        head: what happened to the tensors, in front of their names.
    """

    kind: ClassVar[str] = ""
    head: ClassVar[str] = "no gradient for"
    site: Site | None

    def text(self) -> str:
        """What happened, as a clause whose subject is the tensors."""
        raise NotImplementedError

    def fix(self) -> str:
        """The fix, as one sentence."""
        raise NotImplementedError

    def trace(self) -> tuple[TraceStep, ...]:
        """The places behind the reason, in addition to `site`."""
        return ()

    def following(self, place: Site) -> Reason:
        """This reason for a tensor that is updated in place from others, at `place`."""
        return self


@dataclass(frozen=True)
class MeantToStay(Reason):
    """A reason that is no mistake for an EMA or target network.

    Attributes:
        follows: where the tensor is updated in place from others; None if it is not.
    """

    follows: Site | None = field(default=None, kw_only=True)

    def following(self, place: Site) -> Reason:
        return replace(self, follows=place)

    def text(self) -> str:
        if self.follows is None:
            return self.happened()
        network = "as an EMA or target network is"
        return f"{self.happened()}; [it is|they are] updated in place{at(self.follows)}, {network}"

    def fix(self) -> str:
        if self.follows is None:
            return self.advice()
        return (
            "Name [it|them] in `allow_none`: an EMA or target network does not learn from "
            "gradients."
        )

    def happened(self) -> str:
        """As `text`, for a tensor without such updates."""
        raise NotImplementedError

    def advice(self) -> str:
        """As `fix`, for a tensor without such updates."""
        raise NotImplementedError
