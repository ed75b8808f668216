"""Orders for engines, from any thread to the pool in the driver's background loop."""

from rljob_trainer.engines.pool import EnginePool
from rljob_trainer.processes.background import Background


class PoolCommands:
    """Carries out orders in the pool's own loop. Orders are accepted only once there are engines."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._pool: EnginePool | None = None

    def connect(self, pool: EnginePool) -> None:
        """Send all further orders to this pool."""
        self._pool = pool

    def restart(self, engine: str, generation: int, reason: str) -> None:
        """Restart an engine as `generation`; return at once. The reason is for the log of orders alone."""
        self._background.submit(self._restart(engine, generation))

    def scale(self, engines: int) -> None:
        """Add or remove engines until there is this number; return at once."""
        self._background.submit(self._scale(engines))

    async def _restart(self, engine: str, generation: int) -> None:
        self._connected().restart(engine, generation)

    async def _scale(self, engines: int) -> None:
        self._connected().scale(engines)

    def _connected(self) -> EnginePool:
        assert self._pool is not None, "orders name engines that the status shows, and the pool shows them"
        return self._pool
