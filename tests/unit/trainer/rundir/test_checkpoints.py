"""Checkpoints are complete or not there, and damage is seen."""

import json
import os
import shutil
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event, current_thread

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.rundir.atomic_files import write_atomically
from rljob_trainer.rundir.checkpoints import (
    BEGIN_ANEW,
    MANIFEST,
    Checkpoint,
    CheckpointError,
    checked,
    complete,
    damage_of,
    described,
    digests_of,
    model_fingerprint,
    newest,
    opened,
    sealed,
    set_aside,
)
from rljob_trainer.rundir.fence import Fence, FencedError, Name
from rljob_trainer.rundir.retries import Patience
from support.trainer.checkpoint_store import checkpoints
from support.trainer.power_cut import Disk, PowerCut


def test_a_saved_checkpoint_is_found_verified_and_says_where_the_data_goes_on(tmp_path):
    checkpoints(tmp_path).save(10)
    found = newest(tmp_path)
    path, checkpoint = found.path, found.checkpoint
    assert path.name == "iter_0000010"
    assert (checkpoint.step, checkpoint.prompts) == (10, (0, 32))
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "10"


def test_a_save_that_is_killed_leaves_no_checkpoint_and_does_not_hinder_the_next(tmp_path):
    store = checkpoints(tmp_path)
    store.learner.dies = True
    with pytest.raises(KeyboardInterrupt):
        store.save(10)
    assert newest(tmp_path) is None
    store.learner.dies = False
    store.save(10)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["iter_0000010"]


def test_old_checkpoints_go_and_the_newest_stay(tmp_path):
    store = checkpoints(tmp_path, keep=2)
    store.save(10), store.save(20), store.save(30)
    assert [path.name for path in complete(tmp_path)] == ["iter_0000030", "iter_0000020"]


@pytest.mark.parametrize("name", ["__0_0.distcp", "common.pt"])
@pytest.mark.parametrize("damage", [lambda f: f.unlink(), lambda f: f.write_bytes(b"weight"[:5]), lambda f: f.touch()])
def test_a_damaged_checkpoint_is_named_and_the_older_one_taken(tmp_path, name, damage):
    store = checkpoints(tmp_path)
    store.save(10), store.save(20)
    file = tmp_path / "iter_0000020" / name
    file.write_bytes(b"")
    damage(file)
    with pytest.raises(CheckpointError, match=name):
        checked(tmp_path / "iter_0000020")
    found = newest(tmp_path)
    assert found.path.name == "iter_0000010"
    assert len(found.damaged) == 1
    assert name in found.damaged[0]


def test_other_bytes_in_a_large_file_are_left_to_the_rank_that_reads_them(tmp_path):
    path = checkpoints(tmp_path).save(10)
    (path / "__0_0.distcp").write_bytes(b"weightz")
    assert checked(path).step == 10
    (path / "common.pt").write_bytes(b"commom")
    with pytest.raises(CheckpointError, match="common"):
        checked(path)


def test_of_a_checkpoint_without_sizes_every_byte_is_looked_at(tmp_path):
    path = checkpoints(tmp_path).save(10)
    (path / MANIFEST).write_bytes(sealed(checked(path).model_copy(update={"sizes": {}})))
    assert checked(path).step == 10
    (path / "__0_0.distcp").write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match="__0_0"):
        checked(path)


def test_training_goes_on_while_a_checkpoint_is_written_and_hears_of_it_afterwards(tmp_path):
    saved = []
    store = replace(checkpoints(tmp_path), saved=lambda step, path, seconds: saved.append((step, path.name, seconds)))
    store.clock = count(100.0, 2.5).__next__
    store.learner.goes_on = Event()
    store.begin(10)
    store.stream.position = (1, 0)
    store.check()
    assert (saved, newest(tmp_path)) == ([], None)
    assert store.journal.commits == [(10, "iter_0000010")], "its place does not depend on the volume"
    store.learner.goes_on.set()
    store.finish()
    assert saved == [(10, "iter_0000010", 2.5)]
    assert newest(tmp_path).checkpoint.prompts == (0, 32), "where the data was then"
    store.finish(), store.check()
    assert len(saved) == 1


def test_one_checkpoint_is_written_at_a_time(tmp_path):
    store = checkpoints(tmp_path)
    order = []
    store.saved = lambda step, path, seconds: order.append(f"saved {step}")
    store.copied = lambda step: order.append(f"copied {step}")
    store.begin(10), store.begin(20), store.save(30)
    assert order == ["copied 10", "saved 10", "copied 20", "saved 20", "copied 30", "saved 30"]


@pytest.mark.parametrize(
    "hears", [lambda store: store.begin(20), lambda store: store.finish(), lambda store: store.save(20)]
)
def test_what_the_writing_raised_is_raised_by_what_comes_next(tmp_path, hears):
    store = checkpoints(tmp_path)
    store.learner.dies = True
    store.begin(10)
    with pytest.raises(KeyboardInterrupt):
        hears(store)
    assert newest(tmp_path) is None


def test_who_begins_again_waits_for_the_writing_and_does_not_hear_what_it_raised(tmp_path):
    store = checkpoints(tmp_path)
    store.begin(10)
    store.settle()
    assert newest(tmp_path).checkpoint.step == 10
    store.learner.dies = True
    store.beside = at_once
    store.begin(20)
    store.settle(), store.settle()
    assert newest(tmp_path).checkpoint.step == 10


def test_a_look_raises_what_the_writing_raised(tmp_path):
    store = checkpoints(tmp_path)
    store.learner.dies = True
    store.beside = at_once
    store.begin(10)
    with pytest.raises(OSError, match="no more"):
        store.check()


def at_once(work):
    future = Future()
    with suppress(KeyboardInterrupt):
        work()
    future.set_exception(OSError("no more"))
    return future


def test_who_waits_for_a_checkpoint_is_alive_and_the_thread_that_writes_is_no_sign_of_life(tmp_path):
    store, beats = checkpoints(tmp_path), []
    store.learner.goes_on = Event()

    def alive():
        beats.append(current_thread())
        store.learner.goes_on.set()

    store.patience = Patience(alive=alive)
    store.save(10)
    assert {*beats} == {current_thread()}


def test_only_damaged_checkpoints_are_an_error_and_no_fresh_start(tmp_path):
    checkpoints(tmp_path).save(10)
    (tmp_path / "iter_0000010" / "rljob.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        newest(tmp_path)


def test_a_run_that_goes_on_from_an_older_checkpoint_makes_the_damaged_one_again(tmp_path):
    store = checkpoints(tmp_path, keep=1)
    store.save(10)
    store = checkpoints(tmp_path, keep=2)
    store.save(20)
    (tmp_path / "iter_0000020" / "common.pt").unlink()
    set_aside(tmp_path, newest(tmp_path).checkpoint.step)
    assert [path.name for path in complete(tmp_path)] == ["iter_0000010"]
    store.save(20)
    assert newest(tmp_path).path.name == "iter_0000020"
    assert (tmp_path / "damaged-iter_0000020" / "__0_0.distcp").exists(), "nothing is thrown away"


def taken(directory: Path, attempt: int) -> Fence:
    fence = Fence(directory, Name("7f3a", attempt))
    fence.claim()
    return fence


def test_a_driver_that_was_left_behind_saves_nothing_and_leaves_its_successors_draft_alone(tmp_path):
    store = checkpoints(tmp_path, may_write=taken(tmp_path, 1).check)
    taken(tmp_path, 2)
    draft = tmp_path / "saving-iter_0000010"
    draft.mkdir()
    with pytest.raises(FencedError):
        store.save(10)
    assert draft.is_dir()


def test_a_checkpoint_that_was_being_written_meanwhile_does_not_count(tmp_path):
    store = checkpoints(tmp_path, may_write=taken(tmp_path, 1).check)
    write = store.learner.write
    store.learner.write = lambda: (taken(tmp_path, 2), write())[1]
    with pytest.raises(FencedError):
        store.save(10)
    assert newest(tmp_path) is None


def test_a_checkpoint_that_is_damaged_twice_is_kept_twice(tmp_path):
    store = checkpoints(tmp_path)
    for _ in range(2):
        store.save(20)
        set_aside(tmp_path, 10)
    names = sorted(path.name for path in tmp_path.glob("damaged-*"))
    assert names == ["damaged-iter_0000020", "damaged-iter_0000020.2"]


def flip(path: Path, place: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a missing shard": (lambda path: (path / "__0_0.distcp").unlink(), "missing files ['__0_0.distcp']"),
    "a truncated file": (lambda path: os.truncate(path / "__0_0.distcp", 3), "changed files ['__0_0.distcp']"),
    "a flipped bit": (lambda path: flip(path / "common.pt", 2), "changed files ['common.pt']"),
    "no rljob.json": (lambda path: (path / MANIFEST).unlink(), "rljob.json is not there"),
    "a truncated rljob.json": (lambda path: os.truncate(path / MANIFEST, 50), "rljob.json cannot be read"),
    "an rljob.json of something else": (lambda path: (path / MANIFEST).write_text("{}"), "cannot be read: step: Field"),
    "another position of the data": (
        lambda path: (path / MANIFEST).write_text((path / MANIFEST).read_text().replace("32", "33")),
        "rljob.json cannot be read: it is not as it was written",
    ),
    "an empty directory": (lambda path: [file.unlink() for file in path.iterdir()], "rljob.json is not there"),
    "the checkpoint of another step": (
        lambda path: shutil.copytree(path.with_name("iter_0000010"), path, dirs_exist_ok=True),
        "is that of step 10",
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_every_damage_is_named_and_the_older_checkpoint_taken(tmp_path, damage, said):
    store = checkpoints(tmp_path)
    store.save(10), store.save(20)
    damage(tmp_path / "iter_0000020")
    found = newest(tmp_path)
    assert found.path.name == "iter_0000010"
    assert said in found.damaged[0]


def test_what_is_no_checkpoint_of_ours_is_neither_taken_nor_moved_nor_deleted(tmp_path):
    store = checkpoints(tmp_path, keep=1)
    (tmp_path / "iter_backup").mkdir()
    (tmp_path / "iter_0000030.old").mkdir()
    (tmp_path / "iter_0000040").write_text("a file")
    store.save(10), store.save(20)
    assert newest(tmp_path).damaged == ()
    set_aside(tmp_path, 20)
    assert {"iter_backup", "iter_0000030.old", "iter_0000040"} < {path.name for path in tmp_path.iterdir()}


def test_a_checkpoint_of_megatron_itself_is_passed_over(tmp_path):
    checkpoints(tmp_path).save(10)
    (tmp_path / "iter_0000500").mkdir()
    (tmp_path / "iter_0000500" / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    found = newest(tmp_path)
    assert found.path.name == "iter_0000010"
    assert "iter_0000500: rljob.json is not there" in found.damaged[0]


@given(st.binary(max_size=40), st.integers(1, 20))
def test_a_digest_covers_the_whole_file_however_large_a_chunk_is(tmp_path_factory, content, chunk_bytes):
    directory = tmp_path_factory.mktemp("checkpoint")
    (directory / "shard").write_bytes(content)
    assert digests_of(directory, chunk_bytes=chunk_bytes) == {"shard": xxhash.xxh3_128_hexdigest(content)}


@pytest.mark.parametrize("flushes", range(8))
def test_a_power_cut_in_a_save_leaves_the_old_checkpoint_or_the_new_one(tmp_path, monkeypatch, flushes):
    disk, store = Disk(), checkpoints(tmp_path / "run", keep=1)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    store.save(10)
    disk.flushes = flushes
    with suppress(PowerCut):
        store.save(20)
    disk.flushes = None
    disk.restore(tmp_path / "run", tmp_path / "after")
    found = newest(tmp_path / "after")
    assert found.path.name == ("iter_0000010" if flushes < 5 else "iter_0000020")
    assert found.damaged == ()


def test_a_saved_checkpoint_and_its_tracker_outlive_a_power_cut(tmp_path, monkeypatch):
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    checkpoints(tmp_path / "run").save(10)
    disk.restore(tmp_path / "run", tmp_path / "after")
    assert checked(tmp_path / "after" / "iter_0000010").step == 10
    assert (tmp_path / "after" / "latest_checkpointed_iteration.txt").read_text() == "10"


@pytest.mark.parametrize(("flushes", "content"), [(0, b"old"), (1, b"old"), (2, b"new")])
def test_a_power_cut_in_a_write_leaves_the_old_content_or_the_new_one(tmp_path, monkeypatch, flushes, content):
    disk, path = Disk(), tmp_path / "run" / "status.json"
    path.parent.mkdir()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    write_atomically(path, b"old")
    disk.flushes = flushes
    with suppress(PowerCut):
        write_atomically(path, b"new")
    disk.restore(path.parent, tmp_path / "after")
    assert (tmp_path / "after" / "status.json").read_bytes() == content


def test_a_save_is_committed_reported_and_described(tmp_path):
    reported = []
    store = replace(checkpoints(tmp_path), saved=lambda step, path, seconds: reported.append((step, path)))
    path = store.save(10)
    assert path == tmp_path / "iter_0000010"
    assert reported == [(10, path)]
    assert store.journal.commits == [(10, "iter_0000010")]
    assert described(path) == Checkpoint(
        step=10,
        prompts=(0, 32),
        data_fingerprint="abc",
        layout="tp1 pp1 dp1",
        model="model",
        precision="fp32",
        files={name: xxhash.xxh3_128_hexdigest((path / name).read_bytes()) for name in ("__0_0.distcp", "common.pt")},
        sizes={"__0_0.distcp": 7, "common.pt": 6},
    )


def test_several_missing_and_changed_files_are_named_in_order(tmp_path):
    path = checkpoints(tmp_path).save(10)
    found = described(path)
    files = dict.fromkeys(("d", "c", "b", "a"), "0")
    damage = damage_of(path, found.model_copy(update={"files": files}), {"d": "1", "b": "1", "z": "2"})
    assert damage == "missing files ['a', 'c'], changed files ['b', 'd']"
    assert damage_of(path, found, found.files | {"more": "1"}) is None


def test_the_step_of_a_checkpoint_under_another_name_is_believed(tmp_path):
    path = checkpoints(tmp_path).save(10)
    assert checked(path.rename(tmp_path / "best")).step == 10


def test_all_damage_is_named_when_no_checkpoint_is_left(tmp_path):
    store = checkpoints(tmp_path)
    for step in (10, 20):
        (store.save(step) / "common.pt").unlink()
    with pytest.raises(CheckpointError) as raised:
        newest(tmp_path)
    assert str(raised.value) == (
        f"no checkpoint can be read: {tmp_path}/iter_0000020: missing files ['common.pt']; "
        f"{tmp_path}/iter_0000010: missing files ['common.pt']; {BEGIN_ANEW}"
    )


def test_only_newer_checkpoints_are_set_aside_and_their_new_names_returned(tmp_path):
    store = checkpoints(tmp_path, keep=5)
    for step in (10, 20, 30):
        store.save(step)
    assert set_aside(tmp_path, 10) == (tmp_path / "damaged-iter_0000030", tmp_path / "damaged-iter_0000020")
    assert [path.name for path in complete(tmp_path)] == ["iter_0000010"]


def test_a_manifest_whose_fields_stand_in_another_order_is_as_it_was_written(tmp_path):
    path = checkpoints(tmp_path).save(10)
    fields = json.loads((path / MANIFEST).read_text())
    assert opened(json.dumps(dict(reversed(fields.items())))) == described(path)


def test_a_manifest_without_a_digest_is_believed_and_a_list_is_not_one(tmp_path):
    path = checkpoints(tmp_path).save(10)
    fields = json.loads((path / MANIFEST).read_text())
    del fields["digest"]
    assert opened(json.dumps(fields)) == described(path)
    with pytest.raises(ValueError, match="valid dictionary"):
        opened("[]")


@pytest.fixture
def hf_model(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "a.safetensors").write_bytes(bytes(range(8)))
    (directory / "b.safetensors").write_bytes(bytes(range(8)))
    return directory


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "config.json").write_text("{ }"),
        lambda model: flip(model / "a.safetensors", 4),
        lambda model: flip(model / "b.safetensors", 7),
        lambda model: (model / "b.safetensors").write_bytes(bytes(range(9))),
        lambda model: (model / "b.safetensors").rename(model / "c.safetensors"),
    ],
    ids=["configuration", "weights", "weights of another file", "size", "name"],
)
def test_another_model_has_another_fingerprint(hf_model, change):
    before = model_fingerprint(hf_model)
    (hf_model / "tokenizer.json").write_text("{}")
    assert model_fingerprint(hf_model) == before
    change(hf_model)
    assert model_fingerprint(hf_model) != before


@pytest.mark.parametrize("field", ["step", "prompts", "data_fingerprint", "layout", "model", "precision", "files"])
def test_every_field_of_a_manifest_is_under_its_digest(tmp_path, field):
    path = checkpoints(tmp_path).save(10)
    fields = json.loads((path / MANIFEST).read_text())
    with pytest.raises(ValueError, match="not as it was written"):
        opened(json.dumps(fields | {field: None}))


def test_checkpoints_are_in_the_order_of_their_steps_however_long_their_names_are(tmp_path):
    for step in (9_999_999, 10_000_000):
        (tmp_path / f"iter_{step:07d}").mkdir()
    assert [path.name for path in complete(tmp_path)] == ["iter_10000000", "iter_9999999"]


def test_a_directory_in_a_checkpoint_has_no_digest(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "shard").write_bytes(b"weights")
    assert digests_of(tmp_path).keys() == {"shard"}
