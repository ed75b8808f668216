"""A checkpoint, questions and a manifest in one directory, for tests of what is checked before a run."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from rljob_api.reading.manifest import parse
from rljob_trainer.preflight import look_at_files
from rljob_trainer.preflight.model_files import model_files
from support.trainer.whole_run import manifest

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ROWS = [{"question": f"{n} + {n + 1} =", "answer": str(2 * n + 1)} for n in range(12)]


@dataclass
class Place:
    """A checkpoint in two files, questions, and what the manifest says besides."""

    root: Path
    spec: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def questions(self) -> Path:
        return self.root / "questions.jsonl"

    def look(self, *, here: bool = True):
        job = parse(manifest(self.model, self.root, **self.spec))
        return look_at_files(job, model_files(str(self.model)), here=here)

    def look_without_a_learner(self):
        return replace(self, spec=self.spec | {"debug": {"rolloutOnly": True}}).look()

    def edit(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        self._edit(self.model / name, change)

    @staticmethod
    def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    def edit_teacher(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        self._edit(self.root / "teacher" / name, change)

    def rows(self, *changed: dict[str, Any]) -> None:
        self.questions.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, *changed]))

    def shard(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        tensors = load_file(self.model / name)
        change(tensors)
        save_file(tensors, self.model / name)


def template(text: str) -> Callable[[Place], object]:
    return lambda place: place.edit("tokenizer_config.json", lambda config: config.update(chat_template=text))


def set_spec(**sections: Any) -> Callable[[Place], object]:
    return lambda place: place.spec.update({name: place.spec.get(name, {}) | value for name, value in sections.items()})
