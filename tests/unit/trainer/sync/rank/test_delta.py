"""The learner's offers: what has changed since the last one, and the whole weights for who needs them."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rljob_trainer.engines.actor.weight_copy import WEIGHTS, apply_delta, copy_whole
from rljob_trainer.engines.weight_delta import DeltaError
from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.sync.rank.delta import DeltaWriter
from rljob_trainer.sync.rank.sender import SendError, specs_of

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "odd": torch.randn(7, 3, generator=generator).to(torch.bfloat16),
        "fp32": torch.randn(50, 41, generator=generator),
        "bf16": torch.randn(301, 7, generator=generator).to(torch.bfloat16),
    }


def export(tensors: Tensors) -> Generator[tuple[str, torch.Tensor], None, None]:
    yield from tensors.items()


def stepped(tensors: Tensors) -> Tensors:
    """Change a few elements, in place."""
    for tensor in tensors.values():
        tensor[:2] *= 1.01
    return tensors


def received(files: WeightFiles, copy: Path) -> Tensors:
    apply_delta(files, copy)
    return load_file(copy / WEIGHTS)


def equal(found: Tensors, wanted: Tensors) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def begun(tensors: Tensors, path: Path) -> tuple[DeltaWriter, Path, Path]:
    """Return a writer after a first offer, its directory, and a copy of what was offered."""
    writer, shared, copy = DeltaWriter(specs_of(tensors.items())), path / "shared", path / "copy"
    files = writer.offer(export(tensors), shared)
    assert files.delta is None
    writer.write_whole(files)
    copy_whole(files, copy)
    assert equal(load_file(copy / WEIGHTS), tensors)
    return writer, shared, copy


def test_each_version_is_a_delta_of_the_one_before(tensors: Tensors, tmp_path: Path) -> None:
    writer, shared, copy = begun(tensors, tmp_path)
    for _ in range(3):
        files = writer.offer(export(stepped(tensors)), shared)
        assert files.delta is not None
        assert [path.name for path in shared.iterdir()] == [files.delta_path.name], "nothing of an earlier version"
        assert files.delta_path.stat().st_size == files.delta.nbytes < files.nbytes / 8
        assert equal(received(files, copy), tensors)


def test_the_same_version_offered_again_is_another_publication(tensors: Tensors, tmp_path: Path) -> None:
    writer, shared, _ = begun(tensors, tmp_path)
    first, again = (writer.offer(export(tensors), shared) for _ in range(2))
    assert first.digest == again.digest
    assert first.offer != again.offer, "a copy may have been damaged in between"


def test_unchanged_weights_need_no_file_where_they_are(tensors: Tensors, tmp_path: Path) -> None:
    writer, shared, copy = begun(tensors, tmp_path)
    files = writer.offer(export(tensors), shared)
    assert files.delta is None
    assert [path.name for path in shared.iterdir()] == [files.whole_path.name]
    assert equal(received(files, copy), tensors)


def test_whole_weights_are_written_once(tensors: Tensors, tmp_path: Path) -> None:
    writer, shared, _ = begun(tensors, tmp_path)
    files = writer.offer(export(stepped(tensors)), shared)
    writer.write_whole(files)
    inode = files.whole_path.stat().st_ino
    writer.write_whole(files)
    assert files.whole_path.stat().st_ino == inode
    assert files.nbytes == files.whole_path.stat().st_size
    assert equal(load_file(files.whole_path), tensors)


def test_a_delta_that_is_hardly_smaller_is_not_offered(tensors: Tensors, tmp_path: Path) -> None:
    writer, shared, copy = begun(tensors, tmp_path)
    chance = torch.Generator().manual_seed(1)
    for tensor in tensors.values():
        tensor.view(torch.uint8).random_(generator=chance)
    files = writer.offer(export(tensors), shared)
    assert files.delta is None
    assert list(shared.iterdir()) == []
    with pytest.raises(DeltaError):
        apply_delta(files, copy)
    writer.write_whole(files)
    assert copy_whole(files, copy) == files.nbytes
    assert writer.offer(export(stepped(tensors)), shared).delta is not None, "the next one is"


def test_only_the_last_offer_can_be_written(tensors: Tensors, tmp_path: Path) -> None:
    writer, shared, _ = begun(tensors, tmp_path)
    first = writer.offer(export(stepped(tensors)), shared)
    writer.offer(export(stepped(tensors)), shared)
    with pytest.raises(SendError, match="the last offer was"):
        writer.write_whole(first)
    assert not first.whole_path.exists()


def test_after_an_offer_that_failed_comes_one_without_a_delta(tensors: Tensors, tmp_path: Path) -> None:
    writer, shared, copy = begun(tensors, tmp_path)

    def failing() -> Generator[tuple[str, torch.Tensor], None, None]:
        yield "odd", stepped(tensors)["odd"]
        raise SendError("a rank is lost")

    with pytest.raises(SendError, match="a rank is lost"):
        writer.offer(failing(), shared)
    files = writer.offer(export(tensors), shared)
    assert files.delta is None
    writer.write_whole(files)
    copy_whole(files, copy)
    assert equal(load_file(copy / WEIGHTS), tensors)


def test_a_learner_that_restarts_goes_on_with_the_copies_if_it_has_their_weights(
    tensors: Tensors, tmp_path: Path
) -> None:
    _, shared, copy = begun(tensors, tmp_path)
    restarted = DeltaWriter(specs_of(tensors.items()))
    files = restarted.offer(export(tensors), shared)
    assert apply_delta(files, copy) == 0
    assert equal(received(restarted.offer(export(stepped(tensors)), shared), copy), tensors)


@pytest.mark.parametrize("change", [lambda tensors: tensors, stepped])
def test_a_learner_that_restarts_with_other_weights_gives_whole_ones(
    tensors: Tensors, tmp_path: Path, change: Callable[[Tensors], Tensors]
) -> None:
    _, shared, copy = begun(tensors, tmp_path)
    stepped(tensors)
    restarted = DeltaWriter(specs_of(tensors.items()))
    restarted.offer(export(tensors), shared)
    with pytest.raises(DeltaError):
        apply_delta(restarted.offer(export(change(tensors)), shared), copy)
