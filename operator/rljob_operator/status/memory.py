"""The parts of a status that the operator has to remember; the rest is for people and programs. Pure."""

from collections.abc import Iterator

from rljob_api.status import Condition, ConditionType, Status

ENDINGS = (ConditionType.SUCCEEDED, ConditionType.FAILED)
REMEMBERED = (*ENDINGS, ConditionType.QUOTA_RESERVED)
"""conditions from which history and queue are read"""


def less_of(old: Status, wanted: Status) -> Iterator[Status]:
    """Yield less and less of a status that an API server refuses, over the one that it has stored.

    An older CRD refuses values of closed sets that it does not know, for example an action of `recovery`.
    """
    memory = old.model_copy(
        update={
            "observed_generation": wanted.observed_generation,
            "phase": wanted.phase,
            "phase_since": wanted.phase_since,
            "conditions": _conditions(old, wanted, tuple(each.type for each in old.conditions)),
            "attempt": wanted.attempt,
            "restarts": wanted.restarts,
            "gpus": wanted.gpus,
            "start_time": wanted.start_time,
            "completion_time": wanted.completion_time,
            "directory": wanted.directory,
            "release": wanted.release,
            "queue": wanted.queue,
            "resolved": wanted.resolved,
            "attempts": wanted.attempts,
        }
    )
    yield memory
    known = {each.number: each for each in old.attempts}
    plain = {"cause": None, "failure": None, "reason": None}
    yield memory.model_copy(
        update={
            "phase": old.phase,
            "phase_since": old.phase_since,
            "conditions": _conditions(old, wanted, ENDINGS),
            "queue": old.queue,
            "attempts": tuple(
                each if known.get(each.number) == each else each.model_copy(update=plain) for each in wanted.attempts
            ),
        }
    )


def _conditions(old: Status, wanted: Status, new: tuple[ConditionType, ...]) -> tuple[Condition, ...]:
    """Return the wanted conditions of these types, and the old ones of others that are not remembered."""
    taken = {each.type: each for each in wanted.conditions if each.type in (*new, *ENDINGS)}
    kept = {each.type: each for each in old.conditions if each.type not in REMEMBERED}
    return tuple({**kept, **taken}.values())
