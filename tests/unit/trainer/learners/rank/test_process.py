"""What a rank sets in its process before it starts."""

import os
from pathlib import Path

import pytest
import torch

from rljob_trainer.learners.rank import process
from support.trainer.learner_data import learner_config

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@pytest.mark.parametrize(
    ("shares", "given", "wanted"), [(True, None, "1"), (True, "8", "8"), (False, None, None), (False, "8", "8")]
)
def test_collectives_of_shared_out_tokens_go_first_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch, shares: bool, given: str | None, wanted: str | None
) -> None:
    monkeypatch.setenv(CONNECTIONS, given or "")
    if given is None:
        monkeypatch.delenv(CONNECTIONS)
    threads = torch.get_num_threads()
    config = learner_config(Path("model"), tensor=2, sequence=shares, num_threads=threads)
    assert process.prepare(config, 0) == torch.device("cpu")
    assert os.environ.get(CONNECTIONS) == wanted
