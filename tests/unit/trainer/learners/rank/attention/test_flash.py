"""Which implementation of attention is taken, and when it is timed."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rljob_trainer.learners.rank.attention import flash
from rljob_trainer.learners.rank.attention.flash import (
    PLAIN,
    Attend,
    Fastest,
    Runs,
    Sight,
    attends_from_the_end,
    sees_windows,
)

FOUR = Runs(torch.tensor([0, 4], dtype=torch.int32), 4)


class Implementation:
    """Scales its queries, and counts its calls."""

    def __init__(self, factor: float = 2.0, error: Exception | None = None) -> None:
        self.calls = 0
        self._factor, self._error = factor, error

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        queries: Runs,
        keys: Runs | None = None,
        sight: Sight = PLAIN,
    ) -> torch.Tensor:
        self.calls += 1
        if self._error is not None:
            raise self._error
        return q * self._factor + 0 * (k.sum() + v.sum())


class Stopwatch:
    """Says how long each call took: the given times, one after the other, then none at all."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = list(seconds)

    def __call__(self, work: Callable[[], object]) -> float:
        work()
        return self._seconds.pop(0)


def inputs(length: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(length, 2, 8), torch.randn(length, 1, 8), torch.randn(length, 1, 8)


def test_the_faster_of_two_is_timed_once_and_taken_from_then_on() -> None:
    slow, fast = Implementation(), Implementation()
    attend = Fastest({"slow": slow, "fast": fast}, Stopwatch(3.0, 3.0, 3.0, 4.0, 1.0, 4.0))
    for _ in range(3):
        attend(*inputs(), FOUR)
    assert list(attend.chosen.values()) == ["fast"]
    assert fast.calls == slow.calls + 3 - 1  # the first is tried once more, as what the others must agree with


def test_each_power_of_two_of_the_longest_sequence_is_timed_by_itself() -> None:
    attend = Fastest(
        {"one": Implementation(), "other": Implementation()}, Stopwatch(*[1.0] * 3, *[2.0] * 6, *[1.0] * 3)
    )
    for longest in (4, 7, 8):
        attend(*inputs(8), Runs(FOUR.offsets, longest))
    assert list(attend.chosen.values()) == ["one", "other"]


@pytest.mark.parametrize("other", [Implementation(2.2), Implementation(error=RuntimeError("no kernel image"))])
def test_one_that_fails_or_differs_is_never_taken(other: Implementation) -> None:
    attend = Fastest({"first": Implementation(), "other": other}, Stopwatch(9.0, 9.0, 9.0))
    attend(*inputs(), FOUR)
    assert list(attend.chosen.values()) == ["first"]


def test_one_alone_is_not_timed() -> None:
    alone: Attend = Implementation()
    attend = Fastest({"alone": alone}, Stopwatch())
    torch.testing.assert_close(attend(*(given := inputs()), FOUR), 2 * given[0])


def test_the_gradients_of_the_caller_are_untouched_by_the_timing() -> None:
    q, k, v = (each.requires_grad_() for each in inputs())
    out = Fastest({"one": Implementation(), "other": Implementation()}, Stopwatch(*[1.0] * 6))(q, k, v, FOUR)
    assert q.grad is None
    (grad,) = torch.autograd.grad(out.sum(), q)
    torch.testing.assert_close(grad, torch.full_like(q, 2.0))


@pytest.mark.parametrize(("values_seen", "from_the_end"), [(2, True), (1, False)])
def test_which_keys_a_shorter_run_of_queries_sees_is_found_out(values_seen: int, from_the_end: bool) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, queries: Runs, keys: Runs | None) -> torch.Tensor:
        assert (queries.offsets.tolist(), keys.offsets.tolist(), queries.longest, keys.longest) == (
            [0, 1],
            [0, 2],
            1,
            2,
        )
        return v[:values_seen].mean(0, keepdim=True)

    assert attends_from_the_end(attend, torch.device("cpu")) is from_the_end


def test_each_window_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "sees_windows", lambda attend, device: True)
    attend = Fastest(
        {"one": Implementation(), "other": Implementation()}, Stopwatch(*[1.0] * 3, *[2.0] * 6, *[1.0] * 3)
    )
    for sight in (PLAIN, Sight(2), PLAIN):
        attend(*inputs(), FOUR, sight=sight)
    assert list(attend.chosen.values()) == ["one", "other"]


def test_a_window_that_hides_nothing_is_none() -> None:
    attend = Fastest({"one": Implementation()}, Stopwatch())  # which has no windows
    attend(*inputs(), FOUR, sight=Sight(4, 0.3))
    attend(*inputs(2), Runs(torch.tensor([0, 2], dtype=torch.int32), 2), FOUR, sight=Sight(5, 0.3))
    assert {kind.sight for kind in attend.chosen} == {Sight(None, 0.3)}
    with pytest.raises(RuntimeError, match="windows"):
        attend(*inputs(2), Runs(torch.tensor([0, 2], dtype=torch.int32), 2), FOUR, sight=Sight(3, 0.3))


class Windowed:
    """Averages the values within windows that are `off` by some tokens."""

    def __init__(self, off: int) -> None:
        self._off = off

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        queries: Runs,
        keys: Runs | None = None,
        sight: Sight = PLAIN,
    ) -> torch.Tensor:
        width = len(k) if sight.window is None else sight.window + self._off
        ends = range(len(k) - len(q) + 1, len(k) + 1)
        return torch.cat([v[max(0, end - width) : end].mean(0, keepdim=True) for end in ends])


@pytest.mark.parametrize(
    ("sight", "given"),
    [
        (PLAIN, {"causal": True, "softmax_scale": None}),
        (Sight(3, 0.3), {"causal": True, "softmax_scale": 0.3, "window_size": (2, 0)}),
    ],
    ids=str,
)
def test_flash_attention_4_is_given_window_and_scale(
    sight: Sight, given: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: object) -> tuple[torch.Tensor, None]:
        seen.update({name: value for name, value in named.items() if "seqlen" not in name})
        return q, None

    seen: dict[str, object] = {}
    monkeypatch.setattr(flash, "_flash_4", lambda: attend)
    flash.flash_4(*inputs(), FOUR, None, sight)
    assert seen == given


def test_an_implementation_that_keeps_to_windows_is_taken() -> None:
    assert sees_windows(Windowed(0), torch.device("cpu"))
    v = torch.arange(4.0).view(4, 1, 1)
    out = Fastest({"alone": Windowed(0)}, Stopwatch())(v, v, v, FOUR, None, Sight(2))
    assert out.flatten().tolist() == [0.0, 0.5, 1.5, 2.5]


@pytest.mark.parametrize("off", [1, -1, 10], ids=["one more", "one fewer", "no window"])
def test_an_implementation_that_does_not_keep_to_windows_ends_the_run(off: int) -> None:
    v, attend = torch.arange(4.0).view(4, 1, 1), Fastest({"alone": Windowed(off)}, Stopwatch())
    with pytest.raises(RuntimeError, match=r"alone of torch .* does not keep to the model's windows"):
        attend(v, v, v, FOUR, None, Sight(2))
    attend(v, v, v, FOUR)  # which is right without a window


@pytest.mark.parametrize(
    ("files", "present", "said"),
    [
        ({}, False, ""),
        ({"__init__.py": ""}, False, ""),
        ({"__init__.py": "", "cute.py": "import no_such_compiler"}, False, "left_out=ModuleNotFoundError"),
        (
            {"__init__.py": "", "cute.py": "raise RuntimeError('no toolkit')"},
            False,
            "left_out=RuntimeError: no toolkit",
        ),
        ({"__init__.py": "", "cute.py": "flash_attn_varlen_func = None"}, True, ""),
    ],
    ids=["not installed", "version 2", "without its compiler", "broken", "version 4"],
)
def test_an_implementation_is_there_if_it_imports(
    files: dict[str, str],
    present: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, text in files.items():
        (tmp_path / "flash_attn").mkdir(exist_ok=True)
        (tmp_path / "flash_attn" / name).write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv(flash.DISK_CACHE, "0")
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    flash._flash_4.cache_clear()
    assert flash.has_flash_4() is present
    assert (said in caplog.text) if said else not caplog.text
    flash._flash_4.cache_clear()
