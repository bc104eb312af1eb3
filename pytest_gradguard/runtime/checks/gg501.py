"""GG501: a backward runs from what a collective handed out without its graph.

`distributed.collectives` knows these tensors, and follows what is computed from them.
"""

from __future__ import annotations

from pytest_gradguard.details import Details
from pytest_gradguard.runtime import evidence
from pytest_gradguard.runtime.callsite import Site

CODE = "GG501"
LIGHTNING = "LightningModule.all_gather"
_ADVICE = {
    LIGHTNING: "Gather with `self.all_gather(features, sync_grads=True)` where a loss needs it.",
    "broadcast": (
        "Broadcast `tensor.detach().clone()` where no gradient is wanted; for the gradients of all "
        "ranks, use `torch.distributed.nn.functional.broadcast`."
    ),
}
"""What to do, where it is not to put the own slot back."""


class Evidence(evidence.Evidence):
    """The calls of a collective at one line whose outputs, without a graph, reach a backward.

    Args:
        site: the line of the collective.
        function: its name.
        given: what it was given: its name in the program, and its description.
        backward: the line of the first backward.
        verb: what the program calls there.
        fails: the loss has no graph at all, and torch refuses.
    """

    code = CODE

    def __init__(
        self,
        site: Site | None,
        function: str,
        given: tuple[str, Details],
        backward: Site | None,
        verb: str,
        fails: bool,
    ) -> None:
        name, about = given
        super().__init__(site, "torch.distributed", **about)
        self.advice = _ADVICE.get(function)
        self.details.update({"direction": "result", "object": name, "function": function})
        self._name = f"`{name}`" if name else "a tensor with history"
        self._function = function
        self._fails = fails
        if backward is not None:
            self.add_step(f"this {verb} lacks the gradient", backward.path, backward.line, None)
        self._line = "" if backward is None else f" at line {backward.line}"
        self._verb = verb

    def message(self) -> str:
        if self._function == "broadcast":
            return (
                f"`broadcast` replaces the values of {self._name} on this rank and keeps its "
                f"graph: the {self._verb}{self._line} gives a gradient to what this rank computed "
                "itself, for values that another rank computed."
            )
        harm = (
            f"the loss has no graph, and the {self._verb}{self._line} fails"
            if self._fails
            else f"the {self._verb}{self._line} gives {self._name} no gradient through them"
        )
        return (
            f"`{self._function}` returns the values of {self._name} without a graph, even for this "
            f"rank's own part. The loss is computed from them: {harm}."
        )
