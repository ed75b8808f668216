import gc
import os
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from rljob_trainer.sync.layout import Sharding, buckets
from rljob_trainer.sync.rank.digest import cpu_digest
from rljob_trainer.sync.rank.sender import FILE_NAME, WRITING, SendError, WeightSender, safetensors_header, specs_of

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
    with pytest.raises(SendError, match=r"^send: not connected$"):
        sender(tensors).send(tensors.items(), 1 << 20)


class FakeWork:
    def __init__(self, group: "FakeGroup") -> None:
        self._group = group

    def wait(self, timeout: timedelta) -> None:
        if self._group.breaks:
            raise RuntimeError("gloo: timed out")
        self._group.waits.append(timeout)
        self._group.under_way -= 1


class FakeGroup:
    """Remembers what was broadcast; works when the bytes on their way are waited for."""

    def __init__(self, *meeting: object) -> None:
        self.meeting = meeting
        self.sent: list[tuple[torch.Tensor, int]] = []
        self.waits: list[timedelta] = []
        self.under_way = self.most_under_way = 0
        self.breaks = self.left = False

    def broadcast(self, tensor: torch.Tensor, root: int) -> FakeWork:
        self.sent.append((tensor, root))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        return FakeWork(self)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[FakeGroup]:
    """The groups that senders join, instead of torch's."""
    joined: list[FakeGroup] = []

    def join(*meeting: object) -> FakeGroup:
        joined.append(FakeGroup(*meeting))
        return joined[-1]

    monkeypatch.setattr("rljob_trainer.sync.rank.sender.join_group", join)
    monkeypatch.setattr("rljob_trainer.sync.rank.sender.abandon_group", lambda group: setattr(group, "left", True))
    return joined


def connected(tensors: Tensors) -> WeightSender:
    weights = sender(tensors)
    weights.connect("10.0.0.9", 23456, 3, "rljob-1", "gloo", 7.0)
    return weights


def test_all_tensors_are_broadcast_from_rank_0_in_their_order_within_the_deadline(
    tensors: Tensors, groups: list[FakeGroup]
) -> None:
    weights = connected(tensors)
    digests = weights.send(tensors.items(), bucket_bytes=300)
    (group,) = groups
    assert group.meeting == ("10.0.0.9", 23456, 3, 0, "rljob-1", "gloo", 7.0)
    assert all(torch.equal(sent, given) for (sent, _), given in zip(group.sent, tensors.values(), strict=True))
    assert {root for _, root in group.sent} == {0}
    assert group.waits == [timedelta(seconds=7.0)] * len(tensors)
    assert group.most_under_way == 2, "k and v, 128 bytes each, make a bucket"
    assert digests == weights.digests(tensors.items())


def test_a_bucket_is_gathered_while_the_one_before_it_is_on_its_way(tensors: Tensors, groups: list[FakeGroup]) -> None:
    weights = connected(tensors)
    seen: list[int] = []

    def export() -> Iterator[tuple[str, torch.Tensor]]:
        for item in tensors.items():
            seen.append(groups[0].under_way)
            yield item

    weights.send(export(), bucket_bytes=300)
    sizes = [len(bucket) for bucket in buckets(specs_of(tensors.items()), 300)]
    before = [0, *sizes[:-1]]
    assert seen == [number for number, size in zip(before, sizes, strict=True) for _ in range(size)]
    assert groups[0].under_way == 0, "all have arrived"


def test_a_broadcast_that_breaks_names_its_tensors_and_leaves_the_group(
    tensors: Tensors, groups: list[FakeGroup]
) -> None:
    weights = connected(tensors)
    groups[0].breaks = True
    with pytest.raises(SendError, match=r"^broadcast \S+embed_tokens\.weight to \S+q_proj\.weight: gloo: timed out$"):
        weights.send(tensors.items(), bucket_bytes=3200 + 256)
    assert groups[0].left
    with pytest.raises(SendError, match="not connected"):
        weights.send(tensors.items(), 1 << 20)


def test_a_broadcast_that_cannot_begin_names_its_tensors_too(
    tensors: Tensors, groups: list[FakeGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(group: FakeGroup, tensor: torch.Tensor, root: int) -> FakeWork:
        raise RuntimeError("NCCL: aborted")

    weights = connected(tensors)
    monkeypatch.setattr(FakeGroup, "broadcast", refuse)
    with pytest.raises(SendError, match=r"^broadcast \S+embed_tokens\.weight to \S+q_proj\.weight: NCCL: aborted$"):
        weights.send(tensors.items(), bucket_bytes=3200 + 256)
    assert groups[0].left


def test_a_sender_leaves_its_group_before_it_joins_another_and_once(tensors: Tensors, groups: list[FakeGroup]) -> None:
    weights = connected(tensors)
    weights.connect("10.0.0.9", 23457, 2, "rljob-2", "gloo", 7.0)
    assert [group.left for group in groups] == [True, False]
    weights.disconnect()
    weights.disconnect()
    assert groups[1].left


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.popitem(), r"^export: ended before \S+o_proj\.weight$"),
        (lambda tensors: tensors.update(more=torch.zeros(1)), r"^export: expected None, got TensorSpec\(name='more'"),
    ],
    ids=["too few", "too many"],
)
def test_an_export_of_too_few_or_too_many_tensors_is_refused(tensors, groups, change, said) -> None:
    weights = connected(tensors)
    change(tensors)
    with pytest.raises(SendError, match=said):
        weights.send(tensors.items(), 1 << 20)


def test_digests_of_a_file_that_was_not_written_are_refused(tensors: Tensors) -> None:
    with pytest.raises(SendError, match=r"^written: nothing has been$"):
        sender(tensors).written()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_every_type_read_back_equal(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": torch.arange(3).to(dtype), "b": torch.arange(6).reshape(2, 3).to(dtype)}
    sender(tensors).write(tensors.items(), tmp_path / "shm" / "weights")
    read = load_file(tmp_path / "shm" / "weights" / FILE_NAME)
    assert {name: tensor.dtype for name, tensor in read.items()} == dict.fromkeys(tensors, dtype)
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_what_an_earlier_file_held_beyond_the_end_is_cut_off(tensors: Tensors, tmp_path: Path) -> None:
    (tmp_path / WRITING).write_bytes(b"x" * 100_000)
    sender(tensors).write(tensors.items(), tmp_path)
    assert load_file(tmp_path / FILE_NAME).keys() == tensors.keys()


def test_a_file_that_takes_a_few_bytes_at_a_time_holds_all(tensors, tmp_path: Path, monkeypatch) -> None:
    pwrite = os.pwrite
    whole = len(safetensors_header(specs_of(tensors.items()))[0])
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, offset: pwrite(file, data if offset < whole else data[:100], offset)
    )
    sender(tensors).write(tensors.items(), tmp_path)
    read = load_file(tmp_path / FILE_NAME)
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_tensors_begin_at_a_multiple_of_8_bytes_as_readers_expect(tensors: Tensors) -> None:
    header, offsets = safetensors_header(specs_of(tensors.items()))
    assert len(header) % 8 == 0
    assert list(offsets.values()) == [len(header) + begin for begin in (0, 3200, 3456, 3584, 3712)]
    assert header.rstrip(b" ").endswith(b"}")


def test_a_tensor_is_let_go_when_its_digests_are_done(tensors: Tensors) -> None:
    weights = sender(tensors)
    export = ((name, tensor.clone()) for name, tensor in tensors.items())
    seen: list[weakref.ref[torch.Tensor]] = []

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in export:
            seen.append(weakref.ref(tensor))
            yield name, tensor
            del tensor

    weights.digests(watched())
    gc.collect()
    assert [ref() for ref in seen] == [None] * len(tensors)


MIXED = {
    "narrow": torch.arange(15.0).reshape(3, 5).to(torch.float8_e4m3fn),
    "wide": torch.arange(3.0),
    "middle": torch.arange(3.0).bfloat16(),
}


def test_tensors_of_several_types_are_aligned_in_a_file_and_read_back_equal(tmp_path: Path) -> None:
    header, offsets = safetensors_header(specs_of(MIXED.items()))
    assert {name: offset - len(header) for name, offset in offsets.items()} == {"wide": 0, "middle": 12, "narrow": 18}
    sender(MIXED).write(MIXED.items(), tmp_path)
    read = load_file(tmp_path / FILE_NAME)
    assert all(torch.equal(read[name].float(), tensor.float()) for name, tensor in MIXED.items())
    assert {name: tensor.dtype for name, tensor in read.items()} == {name: each.dtype for name, each in MIXED.items()}


def test_gloo_gets_the_bytes_of_fp8_which_it_does_not_know(groups: list[FakeGroup]) -> None:
    connected(MIXED).send(MIXED.items(), bucket_bytes=300)
    ((group,),) = [groups]
    assert [sent.dtype for sent, _ in group.sent] == [torch.uint8, torch.float32, torch.bfloat16]
    assert torch.equal(group.sent[0][0], MIXED["narrow"].view(torch.uint8))
