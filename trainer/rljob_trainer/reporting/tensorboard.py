"""TensorBoard event files, written with the `tensorboard` package alone: torch stays out of the driver's loop.

A resumed run writes a further file that opens with a session start; TensorBoard then hides what older files hold from
that step on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rljob_trainer.reporting.records import EvaluationRecord, PerplexityRecord, Record, StepRecord

_STEP_TAGS: Final = {
    "train/loss": "loss",
    "train/grad_norm": "grad_norm",
    "train/learning_rate": "learning_rate",
    "train/entropy": "entropy",
    "train/kl": "kl",
    "train/perplexity": "perplexity",
    "train/clip_fraction": "clip_fraction",
    "train/logprob_mismatch": "logprob_mismatch",
    "train/importance_weight": "importance_weight",
    "train/importance_cut": "importance_cut",
    "critic/loss": "value_loss",
    "critic/clip_fraction": "value_clip_fraction",
    "critic/explained_variance": "explained_variance",
    "critic/grad_norm": "critic_grad_norm",
    "train/skipped_steps": "skipped",
    "rollout/reward_mean": "reward_mean",
    "rollout/reward_std": "reward_std",
    "rollout/reward_failures": "reward_failures",
    "rollout/groups_without_signal": "groups_without_signal",
    "rollout/groups_dropped": "groups_dropped",
    "rollout/response_length": "response_length",
    "rollout/truncated": "truncated",
    "rollout/repeated": "repeated",
    "rollout/staleness_mean": "staleness",
    "rollout/staleness_max": "max_staleness",
    "perf/step_seconds": "seconds",
    "perf/data_wait": "data_wait",
    "perf/rollout_tokens_per_second": "rollout_tokens_per_second",
    "perf/train_tokens_per_second": "train_tokens_per_second",
    "weights/version": "version",
}
"""tag -> attribute of StepRecord"""


class TensorBoard:
    """Scalars by step. `resumed_from` is the step of the checkpoint that the run goes on from, 0 for a new run."""

    def __init__(self, directory: Path, resumed_from: int) -> None:
        # Steps take seconds to hours: a short flush period costs nothing and keeps the page current.
        self._writer = EventFileWriter(str(directory), flush_secs=5)
        self._writer.add_event(Event(step=resumed_from + 1, session_log=SessionLog(status=SessionLog.START)))

    def record(self, record: Record) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
        if values:
            self._writer.add_event(Event(wall_time=record.time, step=record.step, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the (tag, value) pairs of a record; values that are absent make no point."""
    if isinstance(record, StepRecord):
        for tag, attribute in _STEP_TAGS.items():
            if (value := getattr(record, attribute)) is not None:
                yield tag, float(value)
        for part, mean in record.reward_parts.items():
            yield f"rollout/reward_parts/{part}", mean
        for phase, seconds in record.phase_seconds.items():
            yield f"perf/phase_seconds/{phase}", seconds
    elif isinstance(record, PerplexityRecord):
        yield "eval/perplexity", record.perplexity
    elif isinstance(record, EvaluationRecord):
        yield "eval/accuracy_sampled", record.sampled
        if record.greedy is not None:
            yield "eval/accuracy_greedy", record.greedy
        for name, accuracy in record.sets.items():
            yield f"eval/{name}/accuracy_sampled", accuracy.sampled
            if accuracy.greedy is not None:
                yield f"eval/{name}/accuracy_greedy", accuracy.greedy
