"""Checkpoints with pickles that would run code: what is read of them, and that nothing is run."""

import os
import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from torch.serialization import _get_layout

from rljob_api import sections
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.learners.errors import CheckpointFormatError
from rljob_trainer.learners.rank.checkpoint import checkpoint
from rljob_trainer.learners.rank.checkpoint.draft import write_now
from rljob_trainer.learners.rank.checkpoint.moved import Moved
from rljob_trainer.learners.rank.checkpoint.safe_reading import read_metadata
from rljob_trainer.learners.rank.checkpoint.staging import Staging
from rljob_trainer.learners.rank.optimizer.offloadable_tensors import HostMemory
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, data_parallel
from rljob_trainer.rundir.retries import PATIENT
from support.trainer.lone_rank import SmallModel, lone_rank

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]
LAYOUT = ParallelLayout()
SETTINGS = sections.Optimizer(learning_rate=0.1)


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


class Rank:
    """The state of a learner with one rank."""

    def __init__(self) -> None:
        (self.ddp,) = data_parallel([SmallModel()])
        self.optimizer = Optimizer([self.ddp], SETTINGS, 10, "fp32")

    def save(self, directory: Path) -> None:
        directory.mkdir()
        staging = Staging(HostMemory())
        write_now(checkpoint.stage(directory, [self.ddp], self.optimizer, LAYOUT, {"step": 3}, staging), PATIENT)

    def load(self, directory: Path) -> dict[str, int]:
        return checkpoint.load(directory, [self.ddp], self.optimizer, LAYOUT, Moved())


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    with lone_rank():
        yield Rank()


@pytest.fixture
def saved(rank: Rank, tmp_path: Path) -> Path:
    rank.save(tmp_path / "saved")
    return tmp_path / "saved"


def metadata(saved: Path) -> Any:
    return pickle.loads((saved / ".metadata").read_bytes())


def test_the_bomb_goes_off_where_nothing_holds_it_back(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(tmp_path / "mark")))
    assert (tmp_path / "mark").is_dir()


def in_metadata(saved: Path, mark: Path) -> None:
    (saved / ".metadata").write_bytes(pickle.dumps(replace(metadata(saved), planner_data=Bomb(mark))))


def instead_of_metadata(saved: Path, mark: Path) -> None:
    (saved / ".metadata").write_bytes(pickle.dumps(Bomb(mark)))


def in_common_state(saved: Path, mark: Path) -> None:
    torch.save({"format": "fully_reshardable", "layout": Bomb(mark)}, saved / "common.pt")


@pytest.mark.parametrize("hide", [in_metadata, instead_of_metadata, in_common_state])
def test_code_in_a_checkpoint_is_not_run(
    rank: Rank, saved: Path, tmp_path: Path, hide: Callable[[Path, Path], None]
) -> None:
    hide(saved, tmp_path / "mark")
    with pytest.raises(CheckpointFormatError, match="none of its code was run"):
        rank.load(saved)
    assert not (tmp_path / "mark").exists()


def test_code_in_an_object_of_a_rank_is_not_run(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_random_state", lambda device: {"python": Bomb(tmp_path / "mark")})
    rank.save(tmp_path / "saved")
    with pytest.raises(CheckpointFormatError, match=r"random.*none of its code was run"):
        rank.load(tmp_path / "saved")
    assert not (tmp_path / "mark").exists()


def test_code_in_a_checkpoint_that_is_converted_is_not_run(rank: Rank, saved: Path, tmp_path: Path) -> None:
    in_metadata(saved, tmp_path / "mark")
    with pytest.raises(CheckpointFormatError, match=r"names (posix|nt)\.mkdir, which no checkpoint needs"):
        checkpoint.load_weights(saved, SmallModel())
    assert not (tmp_path / "mark").exists()


NAMES = [
    ("builtins", "eval"),
    ("builtins", "setattr"),
    ("torch", "load"),
    ("torch", "ops"),
    ("torch.serialization", "os.system"),
    ("torch.distributed.checkpoint.metadata", "os.system"),
    ("torch.distributed.checkpoint.metadata", "Metadata.__init__.__globals__"),
    ("pathlib", "PosixPath"),
]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_metadata_may_name_nothing_but_what_it_consists_of(tmp_path: Path, module: str, name: str) -> None:
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + texts + b"\x93.")
    with pytest.raises(CheckpointFormatError, match=f"names {module}.{name}"):
        read_metadata(tmp_path, PATIENT)


class Attribute:
    """Is pickled as `getattr(owner, name)`."""

    def __init__(self, owner: object, name: str) -> None:
        self.given = owner, name

    def __reduce__(self) -> Any:
        return getattr, self.given


def test_metadata_that_another_python_3_11_has_written_can_be_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = metadata(saved)
    written = read_metadata(saved, PATIENT)
    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", lambda self, _: (getattr, (type(self), self.name)))
    (saved / ".metadata").write_bytes(pickle.dumps(there))
    assert b"getattr" in (saved / ".metadata").read_bytes()
    assert read_metadata(saved, PATIENT) == written


@pytest.mark.parametrize(
    "asked",
    [
        Attribute(Metadata, "__init__"),
        Attribute(_MEM_FORMAT_ENCODING, "__class__"),
        Attribute(_MEM_FORMAT_ENCODING, "mro"),
        Attribute("", "join"),
    ],
)
def test_metadata_may_ask_for_no_other_attribute(saved: Path, asked: Attribute) -> None:
    (saved / ".metadata").write_bytes(pickle.dumps(asked))
    with pytest.raises(CheckpointFormatError, match="which no checkpoint needs"):
        read_metadata(saved, PATIENT)


@pytest.mark.parametrize("path", ["../other/__0_0.distcp", "/runs/other/__0_0.distcp", "..", "a/b"])
def test_metadata_may_name_no_file_of_another_directory(saved: Path, path: str) -> None:
    there = metadata(saved)
    key, info = next(iter(there.storage_data.items()))
    there.storage_data[key] = replace(info, relative_path=path)
    (saved / ".metadata").write_bytes(pickle.dumps(there))
    with pytest.raises(CheckpointFormatError, match="names the file"):
        read_metadata(saved, PATIENT)


@pytest.mark.parametrize("content", [pickle.dumps({"a": 1}), b"", b"junk", pickle.dumps([1])])
def test_what_is_no_metadata_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointFormatError, match=r"\.metadata: "):
        read_metadata(tmp_path, PATIENT)


def test_a_disk_that_cannot_be_read_is_no_bad_input(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path, PATIENT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_of_ours_is_read_as_it_was_written(rank: Rank, tmp_path: Path, dtype: torch.dtype) -> None:
    written, read = SmallModel(dtype), SmallModel(dtype)
    checkpoint.save_weights(tmp_path / "weights", written)
    read.matrix.data.zero_()
    checkpoint.load_weights(tmp_path / "weights", read)
    assert torch.equal(read.matrix, written.matrix)


def test_the_whole_state_is_read_as_it_was_written(rank: Rank, saved: Path) -> None:
    before = rank.ddp.module.matrix.detach().clone()
    rank.ddp.module.matrix.data.zero_()
    assert rank.load(saved) == {"step": 3}
    assert torch.equal(rank.ddp.module.matrix, before)


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def a_text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


OF_TORCH = "torch.distributed.checkpoint.metadata"
METADATA, LAYOUT_OF = named(OF_TORCH, "Metadata"), named("torch.serialization", "_get_layout")
MEMBER = named(OF_TORCH, "_MEM_FORMAT_ENCODING") + b"K\x00\x85R"
CHANGES = {
    "an attribute of a class": METADATA + b"N}" + a_text("POLLUTED") + a_text("yes") + b"s\x86b",
    "a method of a class": METADATA + b"N}" + a_text("__eq__") + LAYOUT_OF + b"s\x86b",
    "the dictionary of a class": METADATA + b"}" + a_text("__eq__") + LAYOUT_OF + b"sb",
    "a function": LAYOUT_OF + b"N}" + a_text("__name__") + a_text("x") + b"s\x86b",
    "the member of an enum": MEMBER + b"}" + a_text("POLLUTED") + a_text("yes") + b"sb",
    "a type of torch": named("torch", "float32") + b"N}" + a_text("POLLUTED") + a_text("yes") + b"s\x86b",
    "nothing": b"b",
}


@pytest.mark.parametrize("opcodes", CHANGES.values(), ids=CHANGES)
def test_metadata_changes_nothing_that_is_there(tmp_path: Path, opcodes: bytes) -> None:
    """A class is everybody's: what it has for a method, everybody calls."""
    before = dict(vars(Metadata)), _get_layout.__name__, len(vars(next(iter(_MEM_FORMAT_ENCODING))))
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + opcodes + b".")
    with pytest.raises(CheckpointFormatError):
        read_metadata(tmp_path, PATIENT)
    assert (dict(vars(Metadata)), _get_layout.__name__, len(vars(next(iter(_MEM_FORMAT_ENCODING))))) == before


@pytest.mark.parametrize("size", [b"\x95" + struct.pack("<Q", 2**62), b"\x8d" + struct.pack("<Q", 2**40)])
def test_metadata_that_names_a_size_takes_no_more_memory_than_it_has_bytes(tmp_path: Path, size: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + size + b".")
    with pytest.raises(CheckpointFormatError):
        read_metadata(tmp_path, PATIENT)
