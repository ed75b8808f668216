import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from support.trainer.preflight_place import FIRST, INDEX, SECOND, Place
from support.trainer.tiny_models import tiny_llama, tiny_qwen3
from support.trainer.whole_run import REWARD


@pytest.fixture(scope="session")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny_llama(tmp_path_factory.mktemp("preflight") / "model", tied=False)
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    files = {FIRST: names[: len(names) // 2], SECOND: names[len(names) // 2 :]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, directory / file)
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (directory / INDEX).write_text(json.dumps(index))
    return directory


@pytest.fixture
def place(whole_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    shutil.copytree(whole_model, tmp_path / "model")
    made = Place(tmp_path, {"data": {"heldOut": {"jsonl": str(tmp_path / "held_out.jsonl"), "limit": 2}}})
    made.rows()
    (tmp_path / "held_out.jsonl").write_text(json.dumps({"question": "2 + 2 =", "answer": "4"}) + "\n")
    (tmp_path / "tiny_reward.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    return made


@pytest.fixture
def taught(place: Place) -> Place:
    """The same with a teacher of another family."""
    teacher = tiny_qwen3(place.root / "teacher", seed=7, layers=3)
    place.spec["algorithm"] = {"name": "distillation", "teacher": {"checkpoint": str(teacher)}}
    return place
