"""GG506: ranks of one group step the parameters of a DDP module in one shared memory.

`divergence` finds where the parameters are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gradguard.runtime.kernel import evidence
from pytest_gradguard.runtime.kernel.callsite import Site
from pytest_gradguard.runtime.kernel.evidence import names

CODE = "GG506"


class Evidence(evidence.Evidence):
    """The parameters of one module that several ranks step.

    Args:
        site: the step.
        backend: that of the process group.
        parameters: their names.
        ranks: the ranks of the group.
    """

    code = CODE

    def __init__(
        self, site: Site | None, backend: str, parameters: Sequence[str], ranks: Sequence[int]
    ) -> None:
        super().__init__(site, backend, framework="torch", direction="argument")
        self.details.update(
            {
                "object": parameters[0],
                "parameters": list(parameters),
                "compared_ranks": sorted(ranks),
            }
        )

    def message(self) -> str:
        one, other = self.details["compared_ranks"]
        return (
            f"Ranks {one} and {other} step the same memory: the parameters of the "
            f"DistributedDataParallel module ({names(self.details['parameters'])}) lie in shared "
            "memory that both ranks were given. Each rank makes every step once more, and may "
            "change parameters while another rank uses them."
        )
