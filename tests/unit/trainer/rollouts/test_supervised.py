"""Responses of the data take the place of an engine's, and nobody judges them."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np
import pytest

from rljob_trainer.algorithms.sft import ones
from rljob_trainer.assembly.null_parts import NoGpuSharing
from rljob_trainer.batches.batches import Batches
from rljob_trainer.batches.loss_weights import by_token
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import no_penalties
from rljob_trainer.batches.token_values import Measurement
from rljob_trainer.data.prompt_scheduler import Lead, PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.data.render import SftResponse
from rljob_trainer.metrics import LearnerMetrics, Publication
from rljob_trainer.reporting.measurements import chosen_samples, step_metrics
from rljob_trainer.rollouts.supervised import FirstReferences, HeldOutReferences, References, answered
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.samples import Prompt, Segment

ROWS = 6
PUBLICATION = Publication(1, 0.0, (), {})
TRAINED = LearnerMetrics(perplexity=3.5)


@pytest.fixture
def stream() -> PromptStream:
    rows = Held(Prompt(str(n), f"q{n}", f"q{n}", (1, n), f"a{n}", {}) for n in range(ROWS))
    return PromptStream(rows, seed=3, shuffle=True)


@pytest.fixture
def source(stream: PromptStream, tmp_path: Path) -> References:
    responses = Held(SftResponse(f"a{n}", (10 + n,) * (n + 1)) for n in range(ROWS))
    scheduler = PromptScheduler(stream, Journal(tmp_path / "journal.jsonl"), Lead(steps=3), first_round=4)
    return References(scheduler, responses, prompts_per_step=4)


def test_every_prompt_has_its_own_response_also_in_a_shuffled_epoch(source: References) -> None:
    groups = [group for step in range(3) for group in source.collect(step)]
    assert [group.samples_G[0].text for group in groups] == [group.prompt.label for group in groups]
    assert {len(group.samples_G[0].tokens_T) for group in groups} == set(range(1, ROWS + 1))
    assert len({group.prompt.uid for group in groups}) == 12


def test_responses_of_this_step_and_then_of_the_next_are_expected(source: References) -> None:
    class Noted(Held[SftResponse]):
        def expect(self, rows: Sequence[int]) -> None:
            expected.append([f"a{row}" for row in rows])

    expected: list[list[str]] = []
    noted = replace(source, references=Noted(source.references[row] for row in range(ROWS)))
    steps = [[group.samples_G[0].text for group in noted.collect(step)] for step in range(2)]
    assert expected[:3] == [steps[0], steps[1], steps[1]]


def test_what_is_issued_and_consumed_is_journaled(source: References, tmp_path: Path) -> None:
    uids = [group.prompt.uid for group in source.collect(0)]
    source.consumed(0)
    source.scheduler.journal.close()
    reported = (tmp_path / "journal.jsonl").read_text()
    assert '"issued"' in reported and '"consumed"' in reported and all(reported.count(f'"{uid}"') == 2 for uid in uids)


def test_responses_without_rewards_and_engines_are_trained_on(source: References) -> None:
    scored = source.score(source.collect(0))
    make = Batches(ones, no_penalties, by_token, False, global_batch_size=4, packing=Packing(1, 100))
    (step,) = make(scored)
    (micro_batch,) = step.micro_batches_by_rank[0]
    responses = sum(len(group.group.samples_G[0].tokens_T) for group in scored)
    assert len(micro_batch.targets_R) == responses
    assert micro_batch.weights_R.tolist() == pytest.approx([1 / responses] * responses)


def test_of_a_conversation_only_the_answers_are_trained_on(source: References) -> None:
    said = (Segment(2, "yes", True), Segment(3, "and?", False), Segment(1, "no", True))
    talked = replace(source, references=Held([SftResponse("yesand?no", (11, 12, 13, 14, 15, 16), said)] * ROWS))
    make = Batches(ones, no_penalties, by_token, False, global_batch_size=4, packing=Packing(1, 100))
    (step,) = make(talked.score(talked.collect(0)))
    (micro_batch,) = step.micro_batches_by_rank[0]
    assert micro_batch.targets_R.tolist() == [11, 12, 16] * 4
    assert micro_batch.weights_R.tolist() == pytest.approx([1 / 12] * 12)


@pytest.mark.parametrize("data_parallel", [1, 4])
def test_held_out_responses_are_measured_by_their_answers_tokens(data_parallel: int) -> None:
    said = (Segment(2, "yes", True), Segment(3, "and?", False), Segment(1, "no", True))
    prompt = Prompt("heldOut:0", "q", "q", (1,), "", {})
    groups = [
        answered(prompt, SftResponse("yesand?no", (1, 2, 90, 90, 90, 3), said)),
        answered(prompt, SftResponse("maybe", (4,))),
    ]

    def logprobs(shares):
        return [[-batch.targets_R.astype(np.float32) for batch in share] for share in shares]

    measured = HeldOutReferences(groups, Measurement(logprobs, NoGpuSharing(), Packing(data_parallel, 8))).measure()
    assert measured.perplexity == pytest.approx(exp((1 + 2 + 3 + 4) / 4))
    assert (measured.questions, measured.sampled, measured.greedy) == (2, None, None)


def test_a_model_that_computes_no_numbers_has_no_perplexity() -> None:
    groups = [answered(Prompt("heldOut:0", "q", "q", (1,), "", {}), SftResponse("maybe", (4,)))]
    broken = Measurement(lambda shares: [[np.array([np.nan], np.float32)]], NoGpuSharing(), Packing(1, 8))
    assert HeldOutReferences(groups, broken).measure().perplexity is None


def test_nothing_is_said_of_rewards_and_engines_that_are_not_there(source: References) -> None:
    scored = source.score(source.collect(0))
    measured = step_metrics(scored, TRAINED, PUBLICATION)
    assert (measured.reward_mean, measured.groups_without_signal, measured.logprob_mismatch) == (None, None, None)
    assert (measured.rollout_tokens, measured.perplexity, measured.truncated) == (0, 3.5, 0.0)
    assert [(each.response, each.reward) for each in chosen_samples(scored, 2)] == [
        (group.group.prompt.label, None) for group in scored[:2]
    ]


def test_the_first_step_shows_responses_behind_their_prompts_and_their_perplexity(source: References) -> None:
    reported: list[object] = []

    class Report:
        def step(self, step, groups, training, publication):
            reported.append(step)

        def evaluation(self, step, accuracy):
            reported.append(accuracy)

    report = FirstReferences(Report(), lambda *given: reported.append(given), "f1n9e7")
    scored = source.score(source.collect(0))
    report.step(1, scored, TRAINED, PUBLICATION)
    report.step(2, scored, TRAINED, PUBLICATION)
    (fingerprint, checks, rendered), first, second = reported
    assert (fingerprint, first, second) == ("f1n9e7", 1, 2)
    assert {check.name: check.value for check in checks}["perplexity of the responses under the learner"] == 3.5
    assert rendered[0].prompt + rendered[0].response == scored[0].group.prompt.text + scored[0].group.prompt.label
    assert rendered[0].reward is None


def test_a_response_of_the_data_was_not_cut_off():
    (sample,) = answered(Prompt("heldOut:0", "q", "q", (1,), "", {}), SftResponse("maybe", (4,)), step=3).samples_G
    assert (sample.finish_reason, sample.is_truncated, sample.version) == ("stop", False, 3)
