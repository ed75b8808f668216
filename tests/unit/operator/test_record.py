"""What a driver says, in the job's status."""

from operator_world import Surroundings, raw_job, running
from rljob_api.control import CurvePoint, PerplexityPoint, Progress, SetAccuracy

CURVE = (CurvePoint(step=1, reward=0.1), CurvePoint(step=4, reward=0.4, accuracy=0.5, tokens_per_second=200))
PHASES = {"rollout": 3.90049, "train": 2.0, "publish": 0.25, "report": 0.01, "other": 0.001}
TOLD = Progress(step=4, steps=10, reward_mean=0.4, curve=CURVE, last_step_seconds=PHASES)


def trains() -> Surroundings:
    around = Surroundings().to_running()
    around.now += 60
    around.runs(running().model_copy(update={"progress": TOLD}))
    around.step()
    return around


def test_the_curve_is_kept_when_the_driver_is_gone():
    around = trains()
    around.ends(5)
    around.step()
    around.step()
    assert around.status["phase"] == "Recovering"
    assert around.status["curve"] == [
        {"step": 1, "reward": 0.1},
        {"step": 4, "reward": 0.4, "accuracy": 0.5, "tokensPerSecond": 200.0},
    ]


def test_the_curve_waits_for_its_turn_as_progress_does():
    around = trains()
    longer = TOLD.model_copy(update={"curve": (*CURVE, CurvePoint(step=5, reward=0.5)), "step": 5})
    around.runs(running().model_copy(update={"progress": longer}))
    assert around.plan().status is None
    around.now += 60
    assert around.plan().status.curve[-1].step == 5


def test_a_step_s_time_is_told_by_the_phases_that_count():
    assert trains().status["progress"]["stepSeconds"] == {
        "total": 6.161,
        "rollout": 3.9,
        "train": 2.0,
        "publish": 0.25,
    }


def test_the_newest_accuracy_on_each_evaluation_set_is_told():
    sets = {"hard": SetAccuracy(step=4, sampled=0.123456, greedy=0.5), "easy": SetAccuracy(step=4, sampled=1.0)}
    around = trains()
    around.now += 60
    around.runs(running().model_copy(update={"progress": TOLD.model_copy(update={"evaluation_sets": sets})}))
    around.step()
    assert around.status["progress"]["evaluationSets"] == {"hard": 0.1235, "easy": 1.0}


def test_of_what_learns_the_data_s_own_responses_perplexities_are_told():
    held_out = (PerplexityPoint(step=0, perplexity=9.0), PerplexityPoint(step=4, perplexity=3.14159))
    told = TOLD.model_copy(update={"perplexities": (8.0, 2.71828), "held_out_perplexity": held_out})
    around = trains()
    around.now += 60
    around.runs(running().model_copy(update={"progress": told}))
    around.step()
    progress = around.status["progress"]
    assert (progress["perplexity"], progress["heldOutPerplexity"]) == (2.7183, 3.1416)


def test_a_phase_has_a_beginning_that_stays():
    around = Surroundings().to_running()
    since = around.status["phaseSince"]
    around.now += 100
    around.runs(running(step=4))
    around.step()
    assert (around.status["phase"], around.status["phaseSince"]) == ("Training", since)
    around.now += 100
    around.ends(5)
    around.step()
    assert around.status["phase"] == "Recovering"
    assert around.status["phaseSince"] > since


def test_the_run_s_directory_is_told():
    assert trains().status["directory"] == "/rljob/ml/sums-7f3a1"


def test_a_replay_wants_no_engines():
    around = Surroundings(raw_job(debug={"replay": "runs/first/rollouts"})).to_running()
    assert around.status["engines"]["desired"] == 0
