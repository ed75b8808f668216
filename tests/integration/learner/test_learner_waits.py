"""How often the host waits for the GPU in a step: where a tensor's value becomes a Python number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_trainer.batches.packing import Packing, pack
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.processes.ports import free_ports
from support.trainer.learner_data import learner_config, sequences

READS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__")
"""what makes the host wait for a tensor on a GPU"""
IN_A_STEP = ["item", "tolist"]
"""the gradient norm, before the update, and the metrics, after it"""


@pytest.mark.parametrize("count", [2, 8], ids=["one micro-batch", "several micro-batches"])
def test_the_host_reads_two_tensors_in_a_step(
    checkpoints: dict[tuple[str, bool], Path], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = LearnerRank(learner_config(checkpoints["qwen3", True]), 0, 1, "127.0.0.1", free_ports("127.0.0.1")[0])
    (batches,) = pack(sequences(count), Packing(data_parallel=1, max_tokens=40))
    assert (len(batches) > 1) is (count > 2)
    learner.train(batches)
    reads: list[str] = []
    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, reads))
    learner.train(batches)
    monkeypatch.undo()
    learner.close()
    assert reads == IN_A_STEP


def counted(name: str, reads: list[str]) -> Callable[..., Any]:
    """Return the method of tensors, which notes its calls; on CPUs each comes twice, through a TorchFunctionMode."""
    plain = getattr(torch.Tensor, name)
    inside = False

    def read(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        nonlocal inside
        if inside:
            return plain(self, *arguments, **named)
        reads.append(name)
        inside = True
        try:
            return plain(self, *arguments, **named)
        finally:
            inside = False

    return read
