"""Whether a run continues with new ranks of the learner, and what happens in which order."""

from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rljob_api.reading.manifest import parse
from rljob_api.sections import Spec
from rljob_trainer.assembly import regrouping
from rljob_trainer.assembly.regrouping import Regrouping, cause, possible
from rljob_trainer.learners.errors import LearnerLostError
from rljob_trainer.rundir.resume import Start
from rljob_trainer.sync.transport import TransferError
from support.trainer.whole_run import manifest

LOST = LearnerLostError("learner rank 1: its process is gone")
OF_RAY = LearnerLostError(
    "learner rank 0: its process is gone: it died.\n\tpid: 8439\n\tip: 10.0.3.7\nSome common causes"
)


def spec_of(sections: dict[str, Any]) -> Spec:
    place = Path("/models/tiny")
    return parse(manifest(place, place, **sections)).spec


@pytest.mark.parametrize(
    ("sections", "goes_on"),
    [
        ({"placement": "Disaggregated"}, True),
        ({"placement": "Colocated", "runtime": {"device": "Cpu"}}, True),
        ({"placement": "Colocated", "runtime": {"device": "Gpu"}}, False),
        ({"debug": {"rolloutOnly": True}}, False),
        ({"debug": {"replay": "/elsewhere"}}, False),
    ],
)
def test_new_ranks_need_room_beside_engines(sections: dict[str, Any], goes_on: bool) -> None:
    assert possible(spec_of(sections)) is goes_on


class World:
    """What a regrouping does things to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_lost: bool = True, reserved: bool = True) -> None:
        self.happened: list[str] = []
        self.newest = 4
        note = self.happened.append
        stack = ExitStack()
        stack.callback(note, "the old learner ends")
        report = SimpleNamespace(
            run=lambda attempt, step: note(f"report goes back to {step}"),
            found=lambda finding, step: note(f"{finding.name} at {step}"),
        )
        foundation = SimpleNamespace(
            spec=spec_of({"placement": "Disaggregated"}),
            phases=SimpleNamespace(measure=lambda phase: nullcontext()),
            stack=stack,
            report=report,
            fence=SimpleNamespace(mine=SimpleNamespace(attempt=1, origin="")),
            status_store=SimpleNamespace(update=lambda began: note(began)),
            topology=SimpleNamespace(learner=()),
            directory=None,
            patience=None,
        )
        monkeypatch.setattr(regrouping, "begin", self._begin)
        sampling = SimpleNamespace(learner_is_gone=lambda: note("engines forget the learner"))
        slots = SimpleNamespace(are_reserved=lambda slots: reserved)
        checkpoints = SimpleNamespace(settle=lambda: note("nothing is written"))
        learner = SimpleNamespace(lost=lambda within_s: is_lost)
        self.run = cast(Any, SimpleNamespace(learner=learner, parts=SimpleNamespace(checkpoints=checkpoints)))
        self.regroup = Regrouping(*cast(Any, (foundation, sampling, slots, self._start)))

    def _begin(self, *_: object) -> Start:
        self.happened.append("look for the newest")
        return Start(cast(Any, SimpleNamespace(checkpoint=SimpleNamespace(step=self.newest), path=self, damaged=())))

    name = "iter_4"

    def _start(self, at: Start) -> Any:
        self.happened.append(f"start at {at.step}")
        return "again"


def test_everything_of_the_old_learner_ends_before_the_newest_checkpoint_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    assert cast(Any, world.regroup(world.run, LOST)) == "again"
    assert world.happened == [
        "engines forget the learner",
        "nothing is written",
        "the old learner ends",
        "look for the newest",
        "report goes back to 4",
        "start at 4",
        "LostRank at 4",
        f"continues with new ranks of the learner, resumes from iter_4: LearnerLostError: {LOST}",
    ]


def test_it_begins_again_once_for_each_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.regroup(world.run, LOST)
    with pytest.raises(LearnerLostError):
        world.regroup(world.run, LOST)
    world.newest = 6
    assert cast(Any, world.regroup(world.run, TransferError("broadcast: connection closed"))) == "again"


@pytest.mark.parametrize(
    ("error", "is_lost", "reserved"),
    [(LOST, False, True), (LOST, True, False), (ValueError("anything else"), True, True)],
)
def test_what_new_ranks_do_not_mend_is_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_lost: bool, reserved: bool
) -> None:
    world = World(monkeypatch, is_lost, reserved)
    with pytest.raises(type(error), match=str(error)):
        world.regroup(world.run, error)
    assert not any(each.startswith("start") for each in world.happened)


def test_a_lost_rank_is_said_in_a_line_with_its_node() -> None:
    assert cause(OF_RAY) == "LearnerLostError: learner rank 0: its process is gone: it died. (node 10.0.3.7)"
    assert cause(LOST) == f"LearnerLostError: {LOST}"
    assert cause(LearnerLostError()) == "LearnerLostError"
