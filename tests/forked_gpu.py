"""What torch does in a process that was forked from one that has begun with a GPU, or not.

`RECORDED` has what was seen on a real GPU: by how the parent began, what each action gives in its
child. ``python forked_gpu.py [BEGINNING ...]`` prints what happens here, as JSON; with
``--simulate``, on a simulated GPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cuda_calls import in_a_fork

RECORDED = Path(__file__).parent / "recorded" / "forked_gpu.json"
BEGINNINGS = {
    "nothing": "None",
    "question": "torch.cuda.is_available()",
    "count": "torch.cuda.device_count()",
    "backward": "torch.ones(3, requires_grad=True).sum().backward()",
    "use": 'torch.ones(1, device="cuda")',
    "pinned": "torch.ones(1).pin_memory()",
    "generator": 'torch.Generator("cuda")',
    "stream": "torch.cuda.Stream()",
    "chosen": "torch.cuda.set_device(0)",
    "block": "torch.cuda.device(0).__enter__()",
    "hidden": 'os.environ.update(CUDA_VISIBLE_DEVICES=""), '
    "torch.ones(3, requires_grad=True).sum().backward()",
}
INITIALISED = "in the parent: torch.cuda.is_initialized()"
ACTIONS = (
    "torch.cuda.is_available()",
    "torch.cuda.device_count()",
    "torch.cuda.is_initialized()",
    "torch.cuda.manual_seed_all(0)",
    "torch.cuda.empty_cache()",
    "torch.cuda.memory_allocated()",
    "torch.cuda.init()",
    "torch.cuda.current_device()",
    "torch.cuda.set_device(0)",
    "torch.cuda.synchronize()",
    "torch.cuda.get_rng_state().device.type",
    "torch.cuda.Stream() and None",
    "torch.cuda.Event().record()",
    'torch.Generator("cuda").device.type',
    'torch.ones(1, device="cuda").device.type',
    "torch.ones(1).cuda().device.type",
    'torch.ones(1).to("cuda", non_blocking=True).device.type',
    "torch.nn.Linear(1, 1).cuda().weight.device.type",
    'torch.load(saved, map_location="cuda").device.type',
    "torch.ones(1).pin_memory().device.type",
    "list(torch.utils.data.DataLoader([torch.ones(1)], pin_memory=True))[0].device.type",
    "(torch.ones(1, requires_grad=True) * 2).sum().backward()",
    "torch.autograd.backward(torch.ones(1, requires_grad=True) * 2)",
    "torch.autograd.grad(tensor.sum(), tensor)[0].device.type",
    "torch.func.grad(torch.sum)(torch.ones(2)).device.type",
    "torch.autograd.functional.jacobian(torch.sin, torch.ones(1)).device.type",
    "torch.func.jvp(torch.sin, (torch.ones(1),), (torch.ones(1),))[0].device.type",
    "torch.utils.checkpoint.checkpoint(torch.sin, tensor, use_reentrant=False).sum().backward()",
    'with torch.autocast("cuda"): pass',
    'torch.amp.GradScaler("cuda").is_enabled()',
    "with torch.random.fork_rng(): pass",
    "torch.manual_seed(0) and None",
)


def _does(action: str, names: dict[str, Any]) -> str:
    """What `action` gives in this process, with the warnings it gives beside."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if action.startswith("with "):
            exec(action, dict(names))
            given = None
        else:
            given = eval(action, dict(names))
    texts = sorted(
        str(one.message).splitlines()[0][:90]
        for one in said
        if not issubclass(one.category, DeprecationWarning)
    )
    return f"{given!r}" + "".join(f" [{text}]" for text in texts)


def outcomes(only: Collection[str] = ()) -> dict[str, dict[str, str]]:
    """What each action gives after each beginning, or after those that are named `only`."""
    import torch
    import torch.utils.checkpoint

    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved.pt")
        torch.save(torch.ones(2), saved)
        names = {"os": os, "torch": torch, "saved": saved}
        names["tensor"] = torch.ones(1, requires_grad=True)

        def after(beginning: str) -> str:
            eval(beginning, dict(names))
            seen = {INITIALISED: str(torch.cuda.is_initialized())}
            seen |= {
                action: in_a_fork(lambda action=action: _does(action, names)).splitlines()[0]  # type: ignore[misc]
                for action in ACTIONS
            }
            Path(folder, "seen.json").write_text(json.dumps(seen))
            return "done"

        given = {}
        for name, beginning in BEGINNINGS.items():
            if only and name not in only:
                continue
            assert in_a_fork(lambda beginning=beginning: after(beginning)) == "done"  # type: ignore[misc]
            given[name] = json.loads(Path(folder, "seen.json").read_text())
        return given


def main() -> None:
    names = sys.argv[1:]
    if "--simulate" in names:
        names.remove("--simulate")
        from pytest_gradguard import simulation

        simulation.start(1)
    print(json.dumps(outcomes(names), indent=1))


if __name__ == "__main__":
    main()
