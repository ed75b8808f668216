"""Weights in shared memory, read as SGLang reads them. Files instead of GPU memory: no GPU is here."""

from collections.abc import Iterator

import pytest
import torch
from sglang.srt.utils.common import MultiprocessingSerializer
from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

from rljob_trainer.sync.layout import Sharding, TensorSpec
from rljob_trainer.sync.rank.digest import cpu_digest
from rljob_trainer.sync.rank.sender import SendError, WeightSender, checked, specs_of
from rljob_trainer.sync.rank.sharing import SharedMemory, Sharing, placed

Tensors = dict[str, torch.Tensor]
CPU = torch.device("cpu")


@pytest.fixture
def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    shapes = {"embed.weight": (5, 7), "a.weight": (3,), "b.weight": (9, 3), "c.weight": (4, 2), "d.weight": (1,)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made["a.weight"] = made["a.weight"].bfloat16()  # 6 bytes: what follows would not be aligned
    return made


def read(handle: str) -> Tensors:
    """Return copies of the tensors, as an engine takes them."""
    content = MultiprocessingSerializer.deserialize(handle)
    bucket = FlattenedTensorBucket(flattened_tensor=content["flattened_tensor"], metadata=content["metadata"])
    return {name: tensor.clone() for name, tensor in bucket.reconstruct_tensors()}


def memory(tensors: Tensors, bucket_bytes: int = 120) -> SharedMemory:
    return SharedMemory(specs_of(tensors.items()), bucket_bytes, CPU)


def sharing(tensors: Tensors, exported: Tensors | None = None) -> Sharing:
    specs = specs_of(tensors.items())
    digesting = WeightSender(specs, Sharding(1, 1, tied_embeddings=False), cpu_digest).digesting()
    return Sharing(memory(tensors), checked(specs, iter((exported or tensors).items())), digesting)


def test_every_tensor_begins_where_any_type_may_and_none_lies_on_another() -> None:
    specs = [TensorSpec("a", (3,), "bfloat16"), TensorSpec("b", (16,), "bfloat16"), TensorSpec("c", (1,), "float32")]
    assert [(each.start, each.stop) for each in placed(specs)] == [(0, 6), (16, 48), (48, 52)]


def test_an_engine_reads_every_tensor_as_it_was_bit_by_bit(tensors: Tensors) -> None:
    shared, found = memory(tensors), Tensors()
    for index, bucket in enumerate(shared.buckets):
        found |= read(shared.fill(index, [tensors[each.spec.name] for each in bucket]))
    assert len(shared.buckets) > 2
    assert list(found) == list(tensors)
    assert all(found[name].dtype == tensors[name].dtype for name in tensors)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_a_bucket_stays_as_it_is_while_the_next_is_filled(tensors: Tensors) -> None:
    shared = sharing(tensors)
    first, second = shared.share(0), shared.share(1)
    assert torch.equal(read(first)["embed.weight"], tensors["embed.weight"])
    assert torch.equal(read(second)["b.weight"], tensors["b.weight"])


def test_the_memory_is_made_once_for_all_publications(tensors: Tensors) -> None:
    shared = memory(tensors)
    before: set[int] = set()
    for _ in range(3):
        tensors["embed.weight"] += 1
        handle = shared.fill(0, [tensors[each.spec.name] for each in shared.buckets[0]])
        assert torch.equal(read(handle)["embed.weight"], tensors["embed.weight"])
        before |= {piece.data_ptr() for piece in shared._pieces[:1]}  # a file since the first handle
    assert len(before) == 1


def test_what_an_engine_must_hold_is_known_when_all_is_shared(tensors: Tensors) -> None:
    shared = sharing(tensors)
    for index in range(len(memory(tensors).buckets)):
        shared.share(index)
    wanted = WeightSender(specs_of(tensors.items()), Sharding(1, 1, tied_embeddings=False), cpu_digest)
    assert shared.finish() == wanted.digests(tensors.items())


def test_an_export_with_another_tensor_is_refused(tensors: Tensors) -> None:
    with pytest.raises(SendError, match=r"expected .*embed\.weight.*\(5, 7\).* got .*\(6, 7\)"):
        sharing(tensors, tensors | {"embed.weight": torch.zeros(6, 7)}).share(0)


def test_an_export_with_tensors_too_many_is_refused_at_the_end(tensors: Tensors) -> None:
    shared = sharing(tensors, tensors | {"e.weight": torch.zeros(1)})
    for index in range(len(memory(tensors).buckets)):
        shared.share(index)
    with pytest.raises(SendError, match=r"expected None, got .*e\.weight"):
        shared.finish()


def test_a_publication_that_is_given_up_exports_to_the_end(tensors: Tensors) -> None:
    seen: list[str] = []

    def export() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors.items():
            seen.append(name)
            yield name, tensor

    shared = Sharing(memory(tensors), checked(specs_of(tensors.items()), export()), None)
    shared.share(0)
    assert seen == ["embed.weight"]
    shared.abandon()
    assert seen == list(tensors)
