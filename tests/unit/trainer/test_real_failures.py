"""Failures of the installed libraries, provoked here: the diagnosis reads the traceback that each really writes."""

import argparse
import asyncio
import pickle
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import httpx
import jinja2
import pytest
import requests
import torch
import torch.distributed.checkpoint as dcp
from megatron.core.dist_checkpointing.validation import verify_checkpoint_and_load_strategy
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.utils import divide
from pyarrow import parquet
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoConfig, PreTrainedTokenizerFast

from rljob_doctor.diagnosis import diagnose
from rljob_doctor.scan import scan


def model(directory: Path, config: str | None) -> Path:
    """Return a model's directory with this config.json, or without one."""
    if config is not None:
        (directory / "config.json").write_text(config)
    return directory


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def listening() -> tuple[socket.socket, tuple[str, int]]:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken, taken.getsockname()


def bind_twice(_: Path) -> None:
    taken, address = listening()
    with taken, socket.socket() as second:
        second.bind(address)


def ask_closed_port(ask: Callable[[str], object]) -> None:
    taken, (host, port) = listening()
    taken.close()
    ask(f"http://{host}:{port}/get_model_info")


def no_template(_: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
    tokenizer.apply_chat_template([{"role": "user", "content": "a"}])


def load_other(path: Path, name: str, size: int) -> None:
    dcp.save({"a": torch.zeros(2)}, checkpoint_id=str(path / "saved"), no_dist=True)
    dcp.load({name: torch.zeros(size)}, checkpoint_id=str(path / "saved"), no_dist=True)


def await_a_number(_: Path) -> None:
    async def judge() -> None:
        await (lambda: 1.0)()

    asyncio.run(judge())


def full_disk(_: Path) -> None:
    with Path("/dev/full").open("w", buffering=1) as file:
        file.write("checkpoint\n")


FAILURES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a model that is nowhere": ("ModelNotFound", lambda path: AutoConfig.from_pretrained("/models/nowhere/at/all")),
    "a model without a config": ("ModelNotFound", lambda path: AutoConfig.from_pretrained(model(path, None))),
    "half a config": ("ConfigReadRace", lambda path: AutoConfig.from_pretrained(model(path, '{"model_type": "qwe'))),
    "a new model": (
        "ArchitectureUnknown",
        lambda path: AutoConfig.from_pretrained(model(path, '{"model_type": "q99"}')),
    ),
    "half a shard": ("CheckpointShardsMissing", lambda path: load_file(written(path / "m", b"\x10\0\0\0\0\0\0\0{}"))),
    "half a checkpoint": ("CheckpointDamaged", lambda path: torch.load(written(path / "m.pt", b"PK\x03\x04 nothing"))),
    "no checkpoint": ("CheckpointDamaged", lambda path: verify_checkpoint_and_load_strategy(str(path))),
    "other sizes": (
        "CheckpointLayout",
        lambda path: torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(2, 4).state_dict()),
    ),
    "other sizes in a distributed checkpoint": ("CheckpointLayout", lambda path: load_other(path, "a", 3)),
    "other names": ("CheckpointKeysMissing", lambda path: torch.nn.Linear(2, 3).load_state_dict({})),
    "other names in a distributed checkpoint": ("CheckpointKeysMissing", lambda path: load_other(path, "b", 2)),
    "no GPU": ("GpuNotVisible", lambda path: torch.zeros(1).cuda()),
    "NaN": ("EngineNanLogits", lambda path: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)),
    "no template": ("ChatTemplateMissing", no_template),
    "a template with an error": (
        "ChatTemplateError",
        lambda path: jinja2.Environment().from_string("{{ a.b.c }}").render(),
    ),
    "a port in use": ("PortInUse", bind_twice),
    "requests to nobody": ("EngineUnreachable", lambda path: ask_closed_port(requests.get)),
    "httpx to nobody": ("EngineUnreachable", lambda path: ask_closed_port(httpx.get)),
    "a missing module": ("PythonModuleMissing", lambda path: __import__("own_reward_of_mine")),
    "a missing file": ("PathNotFound", lambda path: (path / "train.jsonl").open()),
    "a file that is not Parquet": ("DataNotJson", lambda path: parquet.read_table(written(path / "t.parquet", b"x"))),
    "a missing key": ("DataKeyMissing", lambda path: {"question": 1}["prompt"]),
    "a lock in a message": ("RaySerialization", lambda path: pickle.dumps(threading.Lock())),
    "a function that is not async": ("UserFunctionSignature", await_a_number),
    "a full disk": ("DiskFull", full_disk),
    "heads that do not divide": ("TrainPartitionMismatch", lambda path: divide(7, 2)),
    "sequence parallelism alone": ("SequenceParallelNeeded", lambda path: ModelParallelConfig(sequence_parallel=True)),
    "batches that do not divide": (
        "BatchInvariant",
        lambda path: init_num_microbatches_calculator(0, None, 500, 2, 8),
    ),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.filterwarnings("ignore")
def test_a_real_traceback_is_diagnosed(name: str, tmp_path: Path):
    code, provoke = FAILURES[name]
    with pytest.raises(BaseException) as raised:
        provoke(tmp_path)
    text = "".join(traceback.format_exception(raised.value))
    assert [each.failure.code for each in diagnose([scan("log", text.encode())]).findings][:1] == [code]


def test_an_argument_that_nobody_knows_is_diagnosed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        argparse.ArgumentParser(prog="train.py").parse_args(["--sglang-log-dir", "x"])
    found = diagnose([scan("log", capsys.readouterr().err.encode())]).findings
    assert [each.failure.code for each in found] == ["UnknownArgument"]
