from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from rljob_trainer.sync.digest import cpu_digest
from rljob_trainer.sync.layout import Sharding
from rljob_trainer.sync.sender import FILE_NAME, WRITING, SendError, WeightSender, specs_of

LAYER = "model.layers.0.self_attn"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (100, 8),
        f"{LAYER}.q_proj.weight": (8, 8),
        f"{LAYER}.k_proj.weight": (4, 8),
        f"{LAYER}.v_proj.weight": (4, 8),
        f"{LAYER}.o_proj.weight": (8, 8),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def sender(tensors: Tensors, ranks: int = 1) -> WeightSender:
    return WeightSender(specs_of(tensors.items()), Sharding(ranks, 2, tied_embeddings=True), cpu_digest)


def plain(tensor: torch.Tensor) -> str:
    return xxhash.xxh3_64_hexdigest(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def test_the_digest_of_a_fused_tensor_is_that_of_its_parts_joined(tensors: Tensors) -> None:
    (digests,) = sender(tensors).digests(tensors.items())
    joined = torch.cat([tensors[f"{LAYER}.{part}_proj.weight"] for part in "qkv"])
    assert digests[f"{LAYER}.qkv_proj.weight"] == plain(joined)


def test_the_digest_of_the_embedding_counts_the_padding(tensors: Tensors) -> None:
    (digests,) = sender(tensors).digests(tensors.items())
    padded = torch.cat([tensors["model.embed_tokens.weight"], torch.zeros(28, 8)])
    assert digests["model.embed_tokens.weight"] == plain(padded)


def test_each_rank_of_an_engine_has_the_digest_of_its_slice(tensors: Tensors) -> None:
    _, second = sender(tensors, ranks=2).digests(tensors.items())
    assert second[f"{LAYER}.o_proj.weight"] == plain(tensors[f"{LAYER}.o_proj.weight"][:, 4:])


def test_bfloat16_is_digested_by_its_bytes() -> None:
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert cpu_digest([tensor]) == plain(tensor)


def test_written_weights_read_back_equal(tensors: Tensors, tmp_path: Path) -> None:
    sender(tensors).write(tensors.items(), tmp_path)
    read = load_file(tmp_path / FILE_NAME)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_writing_again_reuses_the_file_and_digests_the_new_weights(tensors: Tensors, tmp_path: Path) -> None:
    weights = sender(tensors)
    weights.write(tensors.items(), tmp_path)
    first = weights.written()
    inode = (tmp_path / FILE_NAME).stat().st_ino
    tensors[f"{LAYER}.o_proj.weight"].add_(1.0)
    weights.write(tensors.items(), tmp_path)
    second = weights.written()
    assert (tmp_path / FILE_NAME).stat().st_ino == inode
    assert {name for name in first[0] if first[0][name] != second[0][name]} == {f"{LAYER}.o_proj.weight"}


def test_half_written_weights_do_not_have_the_name_of_whole_ones(tensors: Tensors, tmp_path: Path) -> None:
    weights = sender(tensors)
    weights.write(tensors.items(), tmp_path)
    with pytest.raises(SendError):
        weights.write(list(tensors.items())[:3], tmp_path)
    assert not (tmp_path / FILE_NAME).exists()
    assert (tmp_path / WRITING).exists()


def test_an_export_that_changed_is_refused_before_it_is_sent(tensors: Tensors) -> None:
    weights = sender(tensors)
    tensors[f"{LAYER}.o_proj.weight"] = torch.zeros(8, 9)
    with pytest.raises(SendError, match=r"expected .*o_proj.* got .*\(8, 9\)"):
        weights.digests(tensors.items())


def test_a_collective_export_is_exhausted_also_when_it_is_refused(tensors: Tensors) -> None:
    seen: list[str] = []

    def export() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors.items():
            seen.append(name)
            yield name, tensor[:1]

    with pytest.raises(SendError):
        sender(tensors).digests(export())
    assert seen == list(tensors)


def test_sending_without_a_group_is_refused(tensors: Tensors) -> None:
    with pytest.raises(SendError, match="not connected"):
        sender(tensors).send(tensors.items(), 1 << 20)
