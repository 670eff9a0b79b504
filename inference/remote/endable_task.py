"""A coroutine in the event loop of another thread that can be ended without leaving its connections open.

httpx shields the closing of connections from the cancelling of an anyio scope alone: a task that is cancelled while it
closes what expired in the pool leaves the rest of it open and in no list.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from anyio import CancelScope


class EndableTask:
    """Runs `work` in `loop` from now on; made and ended by any thread."""

    def __init__(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._scope: CancelScope | None = None
        self._ended = False
        self._future = asyncio.run_coroutine_threadsafe(self._run(), loop)  # kept: a loop holds its tasks weakly

    def end(self) -> None:
        """Cancel the work, at once if it has not begun; harmless if it is over."""
        self._loop.call_soon_threadsafe(self._end)

    async def _run(self) -> None:
        if self._ended:
            self._work.close()
            return
        with CancelScope() as self._scope:
            await self._work

    def _end(self) -> None:
        self._ended = True
        if self._scope is not None:
            self._scope.cancel()
