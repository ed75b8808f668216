"""Orders to the driver: restart an engine as a generation, scale, drain.

Orders over HTTP and the driver's own orders go through the same book, so each is carried out once.
"""

import logging
import threading
import time
from collections.abc import Callable

from rljob_api.control import (
    DecidedBy,
    Decision,
    EngineOrder,
    EngineState,
    EngineStatus,
    Eviction,
    EvictionResult,
    Refusal,
    RunState,
    Scale,
)
from rljob_trainer.control.evictions import ends_the_run, is_stalled
from rljob_trainer.control.status_store import StatusStore

log = logging.getLogger(__name__)

STAYS = "cannot change: colocated engines sit on the learner's GPUs"


class UnknownEngineError(LookupError):
    """There is no engine of this name; the argument is the Refusal."""


class GenerationError(ValueError):
    """The order skips a generation, or is older than another; the argument is the Refusal."""


class ScaleError(ValueError):
    """The number of engines cannot change; the argument is the Refusal."""


class OrderBook:
    """Desired state; thread-safe. The loop and the engine pool read it, or are called from it."""

    def __init__(
        self,
        status_store: StatusStore,
        restart: Callable[[str, int, str], None],
        scale: Callable[[int], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`restart(engine, generation, reason)` and `scale(engines)` are called once for each accepted order and must
        return at once.
        """
        self._lock = threading.Lock()
        self._status_store = status_store
        self._restart = restart
        self._scale = scale
        self._clock = clock
        self._ordered: dict[str, int] = {}
        self._drain = False

    @property
    def requested(self) -> bool:
        """Whether the loop should save and end after this step."""
        return self._drain

    def drain(self) -> None:
        """Ask the loop to save and end after this step."""
        self._drain = True
        self._status_store.update(state=RunState.DRAINING)
        log.info("action=drain")

    def evict(self, eviction: Eviction) -> EvictionResult:
        """Ask the loop to save and end if the pod holds what the run cannot lose; may be called repeatedly."""
        status = self._status_store.status
        if not self._drain and not ends_the_run(eviction, status.engines):
            return EvictionResult(outcome="Unneeded")
        if not self._drain:
            self._status_store.update(eviction=f"pod {eviction.pod} is being evicted")
            self.drain()
        return EvictionResult(outcome="Draining", stalled=is_stalled(status, self._clock()))

    def engine(self, name: str, order: EngineOrder, by: DecidedBy) -> bool:
        """Accept the order and have it carried out; return False if it is done already or on its way.

        Raises UnknownEngineError, and GenerationError if the order is for neither a known generation nor the next.
        """
        with self._lock:
            engine = self._engine(name)
            known = max(engine.generation, self._ordered.get(name, 0))
            if order.generation <= known or engine.state is not EngineState.DEAD:
                return False
            if order.generation != known + 1:
                rule = f"must be at most {known + 1}, the generation after the present one"
                raise GenerationError(Refusal(field="generation", value=str(order.generation), rule=rule))
            self._ordered[name] = order.generation
        self._accept(name, order, by)
        return True

    def scale(self, order: Scale) -> bool:
        """Accept the order and have it carried out; return False if it is done already or on its way.

        Raises ScaleError if the number of engines cannot change, and GenerationError if a newer order is known, or
        another one of this generation.
        """
        with self._lock:
            now, state = self._status_store.status.scale, self._status_store.status.state
            if now is None:
                rule = "cannot change yet: the engines start" if state is RunState.STARTING else STAYS
                raise ScaleError(Refusal(field="engines", value=str(order.engines), rule=rule))
            if order == now:
                return False
            if order.generation <= now.generation:
                rule = f"must be {now.generation + 1} or more: {now.generation} has ordered {now.engines} engines"
                raise GenerationError(Refusal(field="generation", value=str(order.generation), rule=rule))
            self._status_store.update(scale=order)
        if order.engines == now.engines:
            return False
        log.info("action=scale engines=%d before=%d generation=%d", order.engines, now.engines, order.generation)
        self._scale(order.engines)
        return True

    def _engine(self, name: str) -> EngineStatus:
        engines = {engine.name: engine for engine in self._status_store.status.engines}
        if name not in engines:
            raise UnknownEngineError(Refusal(field="name", value=name, rule=f"must be one of {', '.join(engines)}"))
        return engines[name]

    def _accept(self, name: str, order: EngineOrder, by: DecidedBy) -> None:
        decision = Decision(
            time=self._clock(),
            step=self._status_store.status.progress.step,
            engine=name,
            generation=order.generation,
            by=by,
            reason=order.reason,
        )
        self._status_store.record(decision)
        log.info("action=restart engine=%s generation=%d by=%s reason=%r", name, order.generation, by, order.reason)
        self._restart(name, order.generation, order.reason)
