"""Work-done progress: how far a check has come, for one that takes a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

__all__ = ["shown"]

_SOON = 0.3
"""Seconds that work takes at least whose progress is shown."""

_OFTEN = 0.25
"""Seconds between two reports."""


@asynccontextmanager
async def shown(server: LanguageServer, title: str) -> AsyncIterator[Callable[[int, int], None]]:
    """A block whose progress the client shows, where it can and the block takes a while.

    Gives the function that is called, from any thread, with how much is done, and of how much.
    """
    state = [0, 0]

    def progress(done: int, total: int) -> None:
        state[:] = done, total

    window = server.client_capabilities.window
    if window is None or not window.work_done_progress:
        yield progress
        return
    showing = asyncio.get_running_loop().create_task(_show(server, title, state))
    try:
        yield progress
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _show(server: LanguageServer, title: str, state: list[int]) -> None:
    """Show the progress of `state` until this is cancelled."""
    await asyncio.sleep(_SOON)
    token = str(uuid4())
    progress = server.work_done_progress
    try:
        await progress.create_async(token)
    except JsonRpcException:  # the client refuses
        return
    progress.begin(token, types.WorkDoneProgressBegin(title, percentage=0))
    try:
        while True:
            done, total = state
            if total:
                share = 100 * done // total
                report = types.WorkDoneProgressReport(
                    message=f"{done} of {total} programs", percentage=share
                )
                progress.report(token, report)
            await asyncio.sleep(_OFTEN)
    finally:
        progress.end(token, types.WorkDoneProgressEnd())
        progress.tokens.pop(token, None)
