"""Any course of events: what the pool relies on holds after each of them."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rljob_trainer.engines import lifecycle
from rljob_trainer.engines.lifecycle import Dead, Healthy, Leaving, Serving, Stale, Starting, Suspect

MAX_FAILURES = 3
VERSIONS = st.integers(0, 2)


class EngineLife(RuleBasedStateMachine):
    """One engine, and the facts about it that events report: they may come late, and of an earlier process."""

    def __init__(self) -> None:
        super().__init__()
        self.state: lifecycle.State = Starting(0)
        self.current: int | None = None
        self.held: dict[int, int] = {}
        """weights that each generation was last verified to hold"""
        self.silent: dict[int, int] = {}
        """failed probes in a row of each generation"""
        self.starts = [0]

    def happens(self, event: lifecycle.Event) -> None:
        before, self.state = self.state, lifecycle.advance(self.state, event, self.current, MAX_FAILURES)
        self.left(before, event)

    def left(self, before: lifecycle.State, event: lifecycle.Event) -> None:
        after = self.state
        assert after.generation >= before.generation
        if isinstance(after, Serving) and not isinstance(before, Serving):
            assert isinstance(before, Stale), "there is no way into service but from Stale"
        if isinstance(before, Dead) and not isinstance(after, Dead):
            assert isinstance(after, Starting | Leaving), "there is no way from Dead but a new process, or out"
        if isinstance(after, Starting) and after != before:
            assert isinstance(event, lifecycle.RestartOrdered)
            self.starts.append(after.generation)
        if event.generation != before.generation and not isinstance(event, lifecycle.RestartOrdered):
            assert after == before, "reports of another process change nothing"
        if isinstance(before, Leaving):
            assert after == before

    def generation(self, late: bool) -> int:
        return max(0, self.state.generation - late)

    @rule(late=st.booleans())
    def started(self, late: bool) -> None:
        self.happens(lifecycle.Started(self.generation(late)))

    @rule(late=st.booleans())
    def answers(self, late: bool) -> None:
        generation = self.generation(late)
        self.silent[generation] = 0
        self.happens(lifecycle.ProbeOk(generation))

    @rule(late=st.booleans())
    def does_not_answer(self, late: bool) -> None:
        generation = self.generation(late)
        starting = isinstance(self.state, Starting) and generation == self.state.generation
        self.silent[generation] = 0 if starting else self.silent.get(generation, 0) + 1
        self.happens(lifecycle.ProbeFailed(generation))

    @rule(late=st.booleans(), kind=st.sampled_from((lifecycle.ProcessExited, lifecycle.StartFailed)))
    def ends(self, late: bool, kind: type[lifecycle.ProcessExited]) -> None:
        generation = self.generation(late)
        before = self.state
        self.happens(kind(generation))
        if generation == before.generation and not isinstance(before, Dead | Leaving):
            assert self.state == Dead(generation, kind.__name__)

    @rule(late=st.booleans(), version=VERSIONS, verified=st.booleans())
    def is_published_to(self, late: bool, version: int, verified: bool) -> None:
        generation, self.current = self.generation(late), version
        if verified:
            self.held[generation] = version
            self.silent[generation] = 0
            self.happens(lifecycle.WeightsVerified(generation, version))
        self.happens(lifecycle.VersionMoved(self.state.generation))

    @rule(late=st.booleans())
    def fails_a_publication(self, late: bool) -> None:
        self.happens(lifecycle.PublishFailed(self.generation(late)))

    @rule(generation=st.integers(0, 4))
    def is_ordered_to_restart(self, generation: int) -> None:
        self.happens(lifecycle.RestartOrdered(generation))
        once = self.state
        self.happens(lifecycle.RestartOrdered(generation))
        assert self.state == once

    @rule(late=st.booleans())
    def is_ordered_to_leave(self, late: bool) -> None:
        self.happens(lifecycle.LeaveOrdered(self.generation(late)))

    @invariant()
    def only_current_weights_serve(self) -> None:
        if isinstance(self.state, Serving):
            assert self.state.version == self.current == self.held[self.state.generation]

    @invariant()
    def no_generation_starts_twice(self) -> None:
        assert self.starts == sorted(set(self.starts))

    @invariant()
    def failed_probes_are_counted(self) -> None:
        match self.state:
            case Suspect(generation=generation, probe_failures=failures):
                assert 0 < failures == self.silent[generation] < MAX_FAILURES
            case Stale(generation=generation, probe_failures=failures):
                assert failures <= self.silent.get(generation, 0) and failures < MAX_FAILURES
            case Healthy(generation=generation):
                assert not self.silent.get(generation)


TestEngineLife = EngineLife.TestCase
