"""In which order engines and learner start: where they share GPUs in turns, engines measure what is free."""

from contextlib import ExitStack
from dataclasses import make_dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rljob_trainer.assembly import build
from rljob_trainer.assembly.build import Starting, start_at_once, start_learner_first
from rljob_trainer.preflight import PreflightError


def order(start: Starting) -> list[str]:
    happened: list[str] = []
    group = SimpleNamespace(call=lambda method, weights: happened.append(f"{method.__name__} {weights}"))
    learning = cast(Any, SimpleNamespace(group=group))
    sampling = cast(Any, SimpleNamespace(wait_until_ready=lambda: happened.append("engines ready")))

    def begin(what: str, part: Any) -> Any:
        happened.append(what)
        return part

    found = start(
        lambda: begin("engines start", sampling),
        lambda: begin("learner starts", learning),
        lambda resumed: happened.append(f"resume {resumed is learning}"),
        lambda: None,
    )
    assert found == (sampling, learning)
    return happened


def test_learner_and_engines_start_at_once() -> None:
    assert order(start_at_once) == ["engines start", "learner starts", "engines ready", "resume True"]


def test_engines_start_on_gpus_that_the_learner_has_left() -> None:
    assert order(start_learner_first) == [
        "learner starts",
        "resume True",
        "leave True",
        "engines start",
        "engines ready",
    ]


def test_nothing_starts_on_gpus_that_would_change_published_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, topology, started = SimpleNamespace(learner_leaves=False, runtime=SimpleNamespace(device="Gpu")), "t", []
    foundation = make_dataclass("Foundation", ["spec", "topology", "orders", "stack"])(
        spec, topology, None, ExitStack()
    )
    source = SimpleNamespace(start=lambda *_: started.append("engines"))
    mode = SimpleNamespace(source=source, start_learning=lambda *_: started.append("learner"))

    def refuse(*given: Any) -> None:
        assert given == (spec, topology, "slots")
        raise PreflightError("an A100")

    monkeypatch.setattr(build, "mode_of", lambda _: mode)
    monkeypatch.setattr(build, "_connect_ray", lambda _: "model")
    monkeypatch.setattr(build, "gather", lambda *_: SimpleNamespace(source=source))
    monkeypatch.setattr(build.placement, "reserve", lambda *_: "slots")
    monkeypatch.setattr(build, "require_kept_weights", refuse)

    with pytest.raises(PreflightError, match="an A100"):
        build._run(cast(Any, foundation), cast(Any, None), None)
    assert started == []
