"""TensorBoard event files, written with the `tensorboard` package alone: torch stays out of the driver's loop.

A resumed run writes another file that opens with a session start. From that step on TensorBoard then ignores older
files.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rljob_trainer.gpu_metrics import GpuUse
from rljob_trainer.metric_table import table
from rljob_trainer.reporting.records import EvaluationRecord, PerplexityRecord, Record, StepRecord

GPU_SCALARS = ("utilisation", "memory_bytes", "power_watts", "temperature", "slowed")
"""fields of a GPU's use"""


class TensorBoard:
    """Scalars by step. `resumed_from` is the step of the checkpoint that the run resumes from, 0 for a new run."""

    def __init__(self, directory: Path, resumed_from: int) -> None:
        # A step takes seconds to hours, so flushing often costs nothing.
        self._writer = EventFileWriter(str(directory), flush_secs=5)
        self._writer.add_event(Event(step=resumed_from + 1, session_log=SessionLog(status=SessionLog.START)))

    def record(self, record: Record) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
        if values:
            self._writer.add_event(Event(wall_time=record.time, step=record.step, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the (tag, value) pairs of a record; a value that was not measured has no point."""
    if isinstance(record, StepRecord):
        for name, metric in table(type(record)).items():
            if metric.tag and (value := getattr(record, name)) is not None:
                yield metric.tag, float(value)
        for part, mean in record.reward_parts.items():
            yield f"rollout/reward_parts/{part}", mean
        for phase, seconds in record.phase_seconds.items():
            yield f"perf/phase_seconds/{phase}", seconds
        if record.gpu_summary is None:  # of a large run other GPUs are kept in each step: no curve could be drawn
            yield from gpu_scalars(record.gpus)
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


def gpu_scalars(gpus: Mapping[str, GpuUse]) -> Iterator[tuple[str, float]]:
    """Yield the (tag, value) pairs of each GPU."""
    for gpu, use in gpus.items():
        for name in GPU_SCALARS:
            if (value := getattr(use, name)) is not None:
                yield f"gpu/{gpu}/{name}", float(value)
