"""Waiting: for work that something else may make pointless, and for a thread that must not outlive the process."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def first(work: Awaitable[T], stop: asyncio.Event, error: Exception) -> T:
    """The result of `work`; if `stop` is set before it is there, the work is cancelled and `error` raised."""
    working, stopping = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise error
        return working.result()
    finally:
        stopping.cancel()
        working.cancel()


def in_daemon_thread(work: Callable[[], T]) -> tuple[threading.Thread, "asyncio.Future[T]"]:
    """Run blocking work that cannot be interrupted. Unlike an executor's, the thread does not hold up exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        try:
            result, error = work(), None
        except BaseException as raised:
            result, error = None, raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=run, name="clef-load", daemon=True)
    thread.start()
    return thread, future
