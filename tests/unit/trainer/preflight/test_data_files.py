"""What is wrong with rows, keys and sets is found before anything starts."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rljob_api.reading.manifest import parse
from rljob_trainer.data import sources
from rljob_trainer.preflight import Findings, look_at_files
from rljob_trainer.preflight import questions as preflight_questions
from rljob_trainer.preflight.model_files import model_files
from support.trainer.preflight_place import ROWS, Place, template
from support.trainer.tiny_models import CHAT_TEMPLATE
from support.trainer.whole_run import imitation, manifest


@dataclass
class Imitating(Place):
    """A place whose answers are to be learned."""

    def look(self, *, here: bool = True):
        job = parse(imitation(manifest(self.model, self.root)))
        return look_at_files(job, model_files(str(self.model)), here=here)


@pytest.fixture
def imitating(place: Place) -> Imitating:
    return Imitating(place.root)


TALK = [{"role": "user", "content": "9 + 9 ="}, {"role": "assistant", "content": "18"}]
"""a whole conversation"""

OF_RESPONSES: dict[str, tuple[Callable[[Place], object], str]] = {
    "a row without a response": (
        lambda place: place.rows({"question": "9 + 9 =", "answer": " "}),
        "line 13: no label (spec.data.labelKey is empty there): there is no response to learn",
    ),
    "a response that is too long": (
        lambda place: place.rows({"question": "9 + 9 =", "answer": "1 + " * 9}),
        "tokens): a response of more than the 8 tokens of spec.rollout.sampling.maxNewTokens; nearest valid: ",
    ),
    "a template that writes answers elsewhere": (
        template(CHAT_TEMPLATE.replace("assistant\n' }}{% endif", "assistant\nSure: ' }}{% endif")),
        "the chat template does not write an answer where it has opened the assistant's turn",
    ),
    "a conversation that has been through the template": (
        lambda place: place.rows({"question": [*TALK, {"role": "assistant", "content": "18<|im_end|>"}]}),
        "line 13: holds <|im_end|>, which the model's chat template writes itself",
    ),
    "a conversation that ends with a question": (
        lambda place: place.rows({"question": [*TALK[:2], TALK[0]]}),
        "line 13: no key `answer`",
    ),
    "a conversation whose template drops what was said earlier": (
        lambda place: (
            place.rows({"question": [TALK[0], {"role": "assistant", "content": "<think>9</think>18"}, *TALK]}),
            template(CHAT_TEMPLATE.replace("message['content'] +", "message['content'].split('</think>')[-1] +"))(
                place
            ),
        ),
        "line 13: the chat template does not write message 1 as the assistant would have said it",
    ),
}


def test_sound_responses_have_no_findings(imitating: Imitating):
    imitating.rows({"question": TALK})
    assert imitating.look() == Findings()


@pytest.mark.parametrize("name", OF_RESPONSES)
def test_a_response_that_cannot_be_learned_is_caught(imitating: Imitating, name: str):
    sabotage, said = OF_RESPONSES[name]
    sabotage(imitating)

    problems = imitating.look().problems
    assert [said in str(problem) for problem in problems] == [True] * len({problem.field for problem in problems}) != []


def test_a_key_that_was_probably_meant_is_named(place: Place):
    place.spec["data"]["labelKey"] = "answers"
    (train, held_out) = place.look().problems
    assert (train.nearest, held_out.nearest) == ("spec.data.labelKey: answer",) * 2


def test_of_a_large_file_the_first_rows_are_looked_at_and_no_more(place: Place, monkeypatch):
    monkeypatch.setattr(sources, "HELD_BYTES", 0)
    monkeypatch.setattr(preflight_questions, "LOOKED_AT", 2)
    place.rows({"question": " ", "answer": "1"})
    (place.root / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:2]))
    found = place.look()
    assert not found.problems, "the bad row is the thirteenth, and there are others to train on than the first two"
    assert [text.partition(":")[0] for text in found.unseen] == ["spec.data.train.jsonl"]
    assert "only the first 2 rows were looked at" in found.unseen[0]


OF_SETS: dict[str, tuple[str, str]] = {
    "a file that is not there": ("", 'spec.data.evaluationSets[1].jsonl: "'),
    "a row without its label": (
        json.dumps({"question": "1 + 1 =", "answer": "2"}) + "\n" + json.dumps({"question": "3 + 1 ="}),
        "spec.data.evaluationSets[1].jsonl: line 2: no key `answer` (data.labelKey); the row has `question`",
    ),
    "a row that is not JSON": ("{'question'", "spec.data.evaluationSets[1].jsonl: line 1: not JSON"),
    "a prompt that does not fit": (
        json.dumps({"question": "1 + " * 400, "answer": "2"}),
        "spec.data.evaluationSets[1].jsonl: line 1",
    ),
}
"""what a file holds; nothing: it is not there"""


@pytest.mark.parametrize("name", OF_SETS)
def test_every_evaluation_set_is_looked_at(place: Place, name: str):
    content, said = OF_SETS[name]
    file = place.root / "hard.jsonl"
    file.write_text(content) if content else None
    few = {"name": "few", "jsonl": str(place.questions), "limit": 3}
    place.spec["data"]["evaluationSets"] = [few, {"name": "hard", "jsonl": str(file)}]

    (problem,) = place.look().problems
    assert str(problem).startswith(said)


def test_what_is_not_here_is_no_mistake_of_a_manifest_that_is_meant_for_another_machine(place: Place):
    shutil.rmtree(place.model)
    place.questions.unlink()
    found = place.look(here=False)
    assert (found.problems, found.elsewhere) == ((), (str(place.model), str(place.questions)))


@pytest.mark.parametrize(("limit", "refused"), [(12, True), (11, False)])
def test_held_out_questions_that_leave_none_to_train_on_are_refused(place: Place, limit: int, refused: bool):
    place.spec["data"]["heldOut"] = {"jsonl": str(place.questions), "limit": limit}
    said = [str(problem) for problem in place.look().problems]
    assert said == refused * [
        "spec.data.train.jsonl: no question is left to train on: all 12 are in spec.data.heldOut or "
        "spec.data.evaluationSets; nearest valid: a limit there that is below 12, or other questions"
    ]
