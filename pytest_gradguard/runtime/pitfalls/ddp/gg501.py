"""GG501: a backward pass runs from a collective's output, which has no graph.

`collectives` records these outputs; `cuts` follows computations from them.
"""

from __future__ import annotations

from pytest_gradguard.details import Details
from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.callsite import Site

CODE = "GG501"
LIGHTNING = "LightningModule.all_gather"
_FUNCTIONAL = "torch.distributed.nn.functional"
_ALL_GATHER = (
    f"import `{_FUNCTIONAL}`, and use `{_FUNCTIONAL}.all_gather({{0}})`. It returns a tuple of the "
    "tensors of all ranks (`torch.cat` joins them), and each rank gets the gradients of the losses "
    "of all ranks. Putting only this rank's own tensor back loses those of the other ranks' losses."
)
_ADVICE = {
    LIGHTNING: "Gather with `self.all_gather({0}, sync_grads=True)` where a loss needs it.",
    "broadcast": (
        "Broadcast `{0}.detach().clone()` where no gradient is wanted; for the gradients of all "
        f"ranks, use `{_FUNCTIONAL}.broadcast`."
    ),
    "gather": (
        f"For a loss, import `{_FUNCTIONAL}`, and use `parts = {_FUNCTIONAL}.gather({{0}}, dst)`. "
        "Its backward pass needs all ranks: on those without a loss, run "
        "`(0 * torch.cat(parts)).sum().backward()`."
    ),
    "all_to_all": (
        f"For a loss, import `{_FUNCTIONAL}`, and use `{_FUNCTIONAL}.all_to_all(outputs, inputs)`."
    ),
    "all_gather_object": f"Gather tensors, not objects: {_ALL_GATHER}",
}
_ANY = f"For a loss, {_ALL_GATHER}"
"""The advice, by collective, with a placeholder for the name of the gathered tensor."""


class Evidence(evidence.Evidence):
    """The calls of a collective at one line whose outputs, without a graph, reach a backward pass.

    Args:
        site: the line of the collective.
        function: its name.
        given: the input's name in the program, and its description.
        backward: the line of the first backward pass.
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
        self.advice = _ADVICE.get(function, _ANY).format(name or "features")
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
