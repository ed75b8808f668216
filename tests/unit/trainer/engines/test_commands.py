"""Orders reach the pool from any thread, in the loop that the pool lives in."""

import threading

from rljob_trainer.engines.commands import PoolCommands
from rljob_trainer.processes.background import Background


class Pool:
    """Notes orders, and the thread that gave them."""

    def __init__(self) -> None:
        self.orders: list[tuple] = []
        self.done = threading.Event()

    def restart(self, name: str, generation: int) -> None:
        self.orders.append((name, generation, threading.current_thread().name))

    def scale(self, wanted: int) -> None:
        self.orders.append((wanted, threading.current_thread().name))
        self.done.set()


def test_orders_of_the_main_thread_are_carried_out_in_the_background_in_order():
    with Background() as background:
        commands, pool = PoolCommands(background), Pool()
        commands.connect(pool)
        commands.restart("engine-0", 3, "dead")
        commands.scale(2)
        assert pool.done.wait(10)
    assert pool.orders == [("engine-0", 3, "background"), (2, "background")]
