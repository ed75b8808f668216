"""What a driver of another version, or a head that lies, may answer."""

import json
import random
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.control import (
    AccuracyPoint,
    DecidedBy,
    Decision,
    EngineState,
    EngineStatus,
    Incident,
    Progress,
    RunState,
    Status,
)
from rljob_api.reported import (
    LARGEST,
    MOST_DECISIONS,
    MOST_ENGINES,
    MOST_ENTRIES,
    MOST_FINDINGS,
    MOST_INCIDENTS,
    MOST_VALUES,
    ReportError,
    read_status,
)
from rljob_api.sections import MOST_EVALUATION_SETS

ENGINES = tuple(EngineStatus(name=f"engine-{i}", state=EngineState.HEALTHY, since=1.8e9, version=3) for i in range(2))
STATUS = Status(
    revision=7,
    attempt=2,
    state=RunState.RUNNING,
    phase="rollout",
    heartbeat=1.8e9,
    progress=Progress(step=3, steps=10, rewards=(0.5, 0.25), last_step_seconds={"train": 1.0}),
    engines=ENGINES,
    incidents=(Incident(time=1.8e9, engine="engine-1", generation=0, error="died"),),
    decisions=(Decision(time=1.8e9, step=2, engine="engine-1", generation=1, by=DecidedBy.SUPERVISOR, reason="died"),),
)


def sent(status: Status = STATUS) -> Any:
    return status.model_dump(mode="json", by_alias=True)


def read(raw: Any) -> Status:
    return read_status(json.dumps(raw).encode())


def changed(change: Callable[[Any], object]) -> Status:
    raw = sent()
    change(raw)
    return read(raw)


def test_what_a_driver_of_this_version_sends_is_read_whole() -> None:
    assert read_status(STATUS.model_dump_json(by_alias=True).encode()) == STATUS


def test_both_ways_of_reading_give_the_same() -> None:
    odd = changed(lambda raw: raw.update(newField="\u00e9"))
    assert odd == STATUS


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(samplesPerSecond=3.5),
        lambda raw: raw["progress"].update(samplesPerSecond={"a": [1, None]}),
        lambda raw: raw["engines"][0].update(kind="Prefill"),
        lambda raw: raw["incidents"][0].update(rank=4),
    ],
)
def test_fields_of_a_newer_driver_are_left_out(change: Callable[[Any], object]) -> None:
    assert changed(change) == STATUS


def test_states_of_a_newer_driver_harm_nothing() -> None:
    status = changed(lambda raw: (raw.update(state="Profiling"), raw["engines"][0].update(state="Sleeping")))
    assert status.state is RunState.RUNNING
    assert [each.state for each in status.engines] == [EngineState.UNKNOWN, EngineState.HEALTHY]


def test_who_decided_may_be_somebody_new() -> None:
    assert changed(lambda raw: raw["decisions"][0].update(by="Neighbour")).decisions == STATUS.decisions


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e300, 10**40, -1e18])
def test_a_number_that_is_none_is_left_out_where_it_can_be(number: float) -> None:
    status = changed(lambda raw: raw["progress"].update(rewardMean=number, etaSeconds=number, rewards=[0.5, number]))
    assert status.progress.reward_mean is None
    assert status.progress.eta_seconds is None
    assert status.progress.rewards == (0.5,)


def test_what_the_driver_itself_writes_for_numbers_that_are_none_is_read() -> None:
    diverged = STATUS.model_copy(update={"progress": Progress(step=3, steps=10, perplexities=(12.0, float("inf")))})
    assert read_status(diverged.model_dump_json(by_alias=True).encode()).progress.perplexities == (12.0,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"since": float("nan")},
        {"since": 1e18},
        {"name": "../status"},
        {"name": 5},
        {"state": 5},
        {"generation": -1},
        {"generation": 2**31},
    ],
)
def test_an_entry_without_what_it_needs_is_left_out_alone(wrong: dict[str, Any]) -> None:
    status = changed(lambda raw: raw["engines"][0].update(wrong))
    assert "engine-0" not in [each.name for each in status.engines if each.since == 1.8e9 and "since" in wrong]
    assert status.engines[-1] == ENGINES[1]
    assert status.progress == STATUS.progress


@pytest.mark.parametrize("name", ["Reward Collapse", "Überlauf", "", "a" * 65, "A,B"])
def test_a_finding_whose_name_is_no_word_is_left_out(name: str) -> None:
    findings = [
        {"name": name, "evidence": "e", "advice": "a"},
        {"name": "RewardCollapse", "evidence": "e", "advice": "a"},
    ]
    assert [each.name for each in changed(lambda raw: raw.update(findings=findings)).findings] == ["RewardCollapse"]


def test_two_engines_of_one_name_are_one() -> None:
    twice = changed(lambda raw: raw["engines"][1].update(name="engine-0", version=4))
    assert [(each.name, each.version) for each in twice.engines] == [("engine-0", 3)]


def test_lists_keep_what_a_driver_of_ours_would_report() -> None:
    raw = sent()
    raw["engines"] = [{**raw["engines"][0], "name": f"engine-{i}"} for i in range(MOST_ENGINES + 5)]
    assert len(read(raw).engines) == MOST_ENGINES
    raw = sent()
    raw["incidents"], raw["decisions"] = raw["incidents"] * 500, raw["decisions"] * 500
    raw["findings"] = [{"name": "A", "evidence": "e", "advice": "a"}] * 500
    raw["progress"]["evaluationSets"] = {f"s{i}": {"step": 1, "sampled": 0.5} for i in range(500)}
    raw["progress"]["curve"] = [{"step": i} for i in range(500)]
    status = read(raw)
    assert (len(status.incidents), len(status.decisions)) == (MOST_INCIDENTS, MOST_DECISIONS)
    assert (len(status.findings), len(status.progress.evaluation_sets)) == (MOST_FINDINGS, MOST_EVALUATION_SETS)
    assert [status.progress.curve[0].step, status.progress.curve[-1].step] == [436, 499]


def test_an_odd_status_has_short_lists() -> None:
    raw = sent()
    raw["engines"] = [{"name": f"engine-{i}", "state": "Healthy", "since": None if i else 1.0} for i in range(5_000)]
    assert len(read(raw).engines) <= MOST_ENTRIES


def test_texts_are_printable() -> None:
    status = changed(lambda raw: raw.update(exitReason="\x1b]52;c;eA==\x07 \ud83d"))
    assert status.exit_reason is not None and status.exit_reason.isprintable()
    status.model_dump_json().encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"5",
        b'"status"',
        b"[" * 100_000,
        b'{"engines":' * 50_000,
        b'{"revision": ' + b"9" * 5_000 + b"}x",
        b'{"attempt": 0}',
        b"\xff\xfe",
        b"{" + b",".join(b'"%d":1' % i for i in range(MOST_VALUES + 1)) + b"}",
    ],
)
def test_what_is_no_status_is_refused_in_a_few_words(content: bytes) -> None:
    with pytest.raises(ReportError) as refused:
        read_status(content)
    assert len(str(refused.value)) < 200


def test_points_of_a_long_run_stay() -> None:
    points = tuple(AccuracyPoint(step=i, accuracy=0.5) for i in range(5_000))
    long = STATUS.model_copy(update={"progress": Progress(step=5_000, steps=10_000, accuracy_sampled=points)})
    assert read_status(long.model_dump_json(by_alias=True).encode()) == long


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
KEYS = sorted(
    {key for part in (sent(), sent()["progress"], sent()["engines"][0], sent()["decisions"][0]) for key in part}
)


def spoilt(seed: int, values: list[Any]) -> Any:
    """Return a status in which random fields at any depth hold these values."""
    draw = random.Random(seed)
    raw = sent()
    for value in values:
        part = raw
        while isinstance(part, dict | list) and part:
            key = draw.choice(list(part)) if isinstance(part, dict) else draw.randrange(len(part))
            if draw.random() < 0.4 or not isinstance(part[key], dict | list) or not part[key]:
                part[key] = value
                break
            part = part[key]
    return raw


@given(st.integers(), st.lists(JSON, max_size=4))
def test_whatever_stands_in_a_field_the_rest_is_read_or_refused(seed: int, values: list[Any]) -> None:
    try:
        status = read(spoilt(seed, values))
    except ReportError:
        return
    text = status.model_dump_json(by_alias=True)
    assert read_status(text.encode()) == status
    assert "NaN" not in text and "Infinity" not in text
    assert all(abs(each.since) <= LARGEST for each in status.engines)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(string.ascii_letters, max_size=8), JSON, max_size=8))
def test_any_object_is_read_or_refused(raw: dict[str, Any]) -> None:
    try:
        read(raw)
    except ReportError:
        return
