"""A learner rank in a publication: all ranks export to the end, rank 0 sends. The learner is a list of tensors."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from rljob_api.sections import Quantization
from rljob_api.sizing.quantised import Quantised
from rljob_trainer.engines.actor.weight_copy import WEIGHTS, copy_whole
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.processes.ports import free_ports
from rljob_trainer.sync.layout import LayoutError, Sharding
from rljob_trainer.sync.rank.digest import cpu_digest
from rljob_trainer.sync.rank.quantised.encoding import encoding
from rljob_trainer.sync.rank.rank import PublishingRank
from rljob_trainer.sync.rank.sender import FILE_NAME, SendError, WeightSender, specs_of
from rljob_trainer.sync.rank_calls import Digests

LAYER = "model.layers.0.self_attn"
TENSORS = {
    f"{LAYER}.{part}_proj.weight": torch.arange(float(rows * 8)).reshape(rows, 8) + rows
    for part, rows in {"q": 8, "k": 4, "v": 4, "o": 8}.items()
}
SHARDING = Sharding(2, 2, tied_embeddings=True)
CONFIG = SimpleNamespace(device="cpu")


class Exporting(LearnerRank):
    """A learner without Megatron that counts what is exported."""

    def __init__(self, *joined: object) -> None:
        self.joined = joined
        self.exported: list[list[str]] = []

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        names: list[str] = []
        self.exported.append(names)
        for name, tensor in TENSORS.items():
            names.append(name)
            yield name, tensor


class Rank(PublishingRank, Exporting):
    """The rank under test, with `Exporting` in the place of the learner."""


def rank(number: int) -> Rank:
    return Rank(cast(Any, CONFIG), number, 2, "10.0.0.9", 23456, SHARDING)


def wanted() -> Digests:
    return WeightSender(specs_of(TENSORS.items()), SHARDING, cpu_digest).digests(TENSORS.items())


def connected() -> Rank:
    """Return a rank 0 in a group of its own; without engines, so that it need not wait for any."""
    publishing, (port, _) = rank(0), free_ports("127.0.0.1")
    publishing.connect("127.0.0.1", port, 1, "rljob-1", "gloo", 20.0)
    return publishing


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_joins_the_learner_and_announces_what_it_exports(number: int) -> None:
    publishing = rank(number)
    assert publishing.joined == (CONFIG, number, 2, "10.0.0.9", 23456)
    assert publishing.weight_specs() == publishing.specs == specs_of(TENSORS.items())


def test_rank_0_sends_the_weights_and_returns_what_each_rank_of_an_engine_must_hold() -> None:
    publishing = connected()
    assert publishing.send(200) == wanted()
    publishing.disconnect()
    with pytest.raises(SendError, match="not connected"):
        publishing.send(200)


def test_rank_0_writes_the_weights_and_returns_the_digests_of_what_it_wrote(tmp_path: Path) -> None:
    publishing = rank(0)
    publishing.write(tmp_path)
    read = load_file(tmp_path / FILE_NAME)
    assert publishing.written() == publishing.digests() == wanted()
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


WORK: dict[str, Callable[[Rank, Path], object]] = {
    "send": lambda publishing, directory: publishing.send(200),
    "write": lambda publishing, directory: publishing.write(directory),
    "digests": lambda publishing, directory: publishing.digests(),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_another_rank_takes_part_in_the_export_and_does_nothing_else(
    work: Callable[[Rank, Path], object], tmp_path: Path
) -> None:
    publishing = rank(1)
    publishing.connect("192.0.2.1", 9, 2, "rljob-1", "gloo", 0.001)  # an address that nobody serves
    assert work(publishing, tmp_path) is None
    assert publishing.exported[1:] == [list(TENSORS)]
    assert publishing.written() is None
    publishing.disconnect()
    assert list(tmp_path.iterdir()) == []


def test_a_publication_that_fails_at_once_exports_to_the_end_all_the_same() -> None:
    publishing = rank(0)
    with pytest.raises(SendError, match="not connected"):
        publishing.send(200)
    assert publishing.exported[1:] == [list(TENSORS)]


def test_every_rank_shares_the_weights_and_rank_0_returns_what_engines_must_hold() -> None:
    first, second = rank(0), rank(1)
    for publishing in (first, second):
        for index in range(3):
            assert publishing.share(index, 300)
        assert publishing.exported[1:] == [list(TENSORS)]
    assert first.shared() == wanted()
    assert second.shared() is None


def test_a_publication_that_was_not_finished_is_exported_to_the_end_before_the_next() -> None:
    publishing = rank(1)
    publishing.share(0, 300)
    publishing.share(0, 300)
    assert publishing.exported[1] == list(TENSORS)
    assert len(publishing.exported[2]) < len(TENSORS)


def test_sharing_begins_with_the_first_bucket() -> None:
    publishing = rank(0)
    with pytest.raises(SendError, match="share bucket 1: no publication has begun"):
        publishing.share(1, 300)
    with pytest.raises(SendError, match="shared: no publication has begun"):
        publishing.shared()


def test_rank_0_offers_the_weights_and_returns_their_digests(tmp_path: Path) -> None:
    publishing = rank(0)
    files = publishing.offer(tmp_path / "far")
    assert files is not None
    assert publishing.written() == wanted()
    publishing.write_whole(files)
    copy_whole(files, tmp_path / "copy")
    read = load_file(tmp_path / "copy" / WEIGHTS)
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())
    again = publishing.offer(tmp_path / "far")
    assert again is not None
    assert replace(again, offer=files.offer) == files, "one writer remembers what it has offered"


def test_the_other_ranks_only_export_for_an_offer(tmp_path: Path) -> None:
    publishing = rank(1)
    assert publishing.offer(tmp_path) is None
    publishing.write_whole(rank(0).offer(tmp_path / "far"))
    assert publishing.exported[-1] == list(TENSORS)
    assert list((tmp_path / "far").iterdir()) == []


IN_FP8 = Quantised(Quantization.FP8, ())


def in_fp8(number: int) -> Rank:
    return Rank(cast(Any, CONFIG), number, 2, "10.0.0.9", 23456, Sharding(1, 2, tied_embeddings=True), IN_FP8)


def test_a_rank_announces_and_publishes_quantised_weights_in_every_way(tmp_path: Path) -> None:
    published = list(encoding(IN_FP8).tensors(TENSORS.items()))
    publishing = in_fp8(0)
    assert publishing.weight_specs() == specs_of(published)
    held = WeightSender(specs_of(published), Sharding(1, 2, tied_embeddings=True), cpu_digest).digests(published)

    publishing.write(tmp_path / "whole")
    read = load_file(tmp_path / "whole" / FILE_NAME)
    assert all(torch.equal(read[name].float(), tensor.float()) for name, tensor in published)
    assert publishing.written() == held

    files = publishing.offer(tmp_path / "deltas")
    assert files is not None and publishing.written() == held
    publishing.write_whole(files)
    copy_whole(files, tmp_path / "copy")
    read = load_file(tmp_path / "copy" / WEIGHTS)
    assert all(torch.equal(read[name].float(), tensor.float()) for name, tensor in published)

    publishing.share(0, 10**6)
    assert publishing.shared() == held
    assert publishing.digests() == held


def test_every_rank_shares_quantised_weights_and_only_rank_0_has_digests() -> None:
    other = in_fp8(1)
    other.share(0, 10**6)
    assert other.shared() is None
    assert other.send(100) is None
    assert other.exported[-1] == list(TENSORS)


def test_weights_that_are_not_finite_fail_rank_0_alone_and_every_rank_exports_to_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(TENSORS, name := f"{LAYER}.k_proj.weight", torch.full((4, 8), float("nan")))
    first, other = in_fp8(0), in_fp8(1)
    with pytest.raises(SendError, match=f"quantise {name}: has numbers that are not finite"):
        first.write(tmp_path)
    other.write(tmp_path)
    assert first.exported[-1] == other.exported[-1] == list(TENSORS)


def test_a_list_that_does_not_fit_the_learners_model_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"has linear layers: .*k_proj"):
        Rank(cast(Any, CONFIG), 0, 2, "10.0.0.9", 23456, SHARDING, Quantised(Quantization.FP8, (f"{LAYER}.k_proj",)))
