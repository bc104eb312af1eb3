"""asyncio's way to threads and executors."""

import concurrent.futures


class AbstractEventLoop:
    def run_in_executor(self, executor, func, *args):
        if executor is None:
            executor = concurrent.futures.ThreadPoolExecutor()
        return executor.submit(func, *args)


def to_thread(func, /, *args, **kwargs):
    return concurrent.futures.ThreadPoolExecutor().submit(func, *args, **kwargs)


async def gather(*coros_or_futures, return_exceptions=False):
    return [await it for it in coros_or_futures]


as_completed = concurrent.futures.as_completed
