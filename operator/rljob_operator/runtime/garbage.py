"""Garbage collection: young generations as usual, the oldest only on request.

Old objects are what is known of the cluster, which has no cycles. Walking through that of a thousand jobs, or of five
thousand pods, stops all work for a part of a second.
"""

import asyncio
import gc

NEVER = 10**9
COLLECT_S = 600.0
"""between two collections of old objects where nothing else makes them [s]"""


def collect_young_garbage_only() -> None:
    """Collect old objects only by an explicit `gc.collect`."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


async def collect_now_and_then() -> None:
    """Collect old objects for ever. Those that a collection has left are not looked at again."""
    while True:
        await asyncio.sleep(COLLECT_S)
        gc.collect()
        gc.freeze()
