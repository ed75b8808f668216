"""`rljob plan --gpu`: whether a job fits, and which settings would make it fit."""

import json

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_api.reading.manifest import load
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.misfits import misfits
from rljob_api.sizing.model_shape import shape
from rljob_cli.main import app
from rljob_cli.manifest.fit import CARDS, GIB, UnknownCardError, card, estimated, fit, with_settings

MOE = """
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: moe}
spec:
  model: {checkpoint: "hf://Qwen/Qwen3-30B-A3B"}
  data: {train: {jsonl: questions.jsonl}}
  reward: {kind: Math}
  placement: Colocated
  runtime: {device: Gpu}
  rollout: {promptsPerStep: 32, samplesPerPrompt: 8, contextLength: 8192, sampling: {maxNewTokens: 4096}}
  training: {steps: 100, nodes: 2, gpusPerNode: 8, optimizer: {learningRate: 1.0e-6}}
"""
MODEL = shape(ON_THE_HUB["Qwen/Qwen3-30B-A3B"])
SPREAD = "gpusPerNode: 8, tensorParallel: 4, expertParallel: 8"


def planned(text: str, *arguments: str):
    return CliRunner().invoke(app, ["plan", "-", *arguments], input=text)


def test_the_first_line_says_no_and_what_would_help_and_the_exit_code_says_no_too():
    result = planned(MOE, "--gpu", "H100-80")
    first = result.stdout.splitlines()[0]
    assert first.startswith("does not fit: the fullest GPU needs 249.3 of 71.6 GiB, 90 % of H100-80; with ")
    assert result.exit_code == Exit.BAD_INPUT


def test_what_is_proposed_is_valid_and_fits():
    found = fit(job := load(MOE), MODEL, on := card("H100-80"))
    changed = with_settings(job, found.change)
    assert not found.fits and changed is not None
    again = fit(changed, MODEL, on)
    assert again.fits and again.needed_bytes == found.changed_bytes <= on.usable_bytes


def test_the_first_line_says_yes_with_the_room_for_the_cache():
    result = planned(MOE.replace("gpusPerNode: 8", SPREAD), "--gpu", "h100")
    assert result.stdout.startswith("fits: the fullest GPU needs 65.4 of 71.6 GiB, 90 % of H100-80; room for 161,")
    assert result.exit_code == Exit.OK


def test_programs_read_the_verdict():
    found = json.loads(planned(MOE, "--gpu", "24", "-o", "json").stdout)["fit"]
    assert (found["fits"], found["change"]) == (False, [])
    assert found["sentence"].endswith("one or two other settings do not help: use more GPUs, or a smaller model")
    assert json.loads(planned(MOE, "-o", "json").stdout)["fit"] is None


def test_what_a_format_of_the_engines_forbids_is_not_proposed():
    job = load(MOE.replace("rollout: {", "rollout: {quantization: Int4, "))
    found = fit(job, MODEL, card("H100-80"))
    changed = with_settings(job, found.change)
    assert changed is not None and misfits(MODEL, changed.spec) == ()
    wider = with_settings(job, (("rollout.gpusPerEngine", 8),))
    assert wider is not None and misfits(MODEL, wider.spec), "it cuts groups of 32 of 768"


def test_an_engine_without_room_for_one_sample_does_not_fit():
    job = load(MOE.replace("placement: Colocated", "placement: Disaggregated") + "  debug: {rolloutOnly: true}\n")
    needed = estimated(job.spec, MODEL, None)
    sizes = {tokens: (needed.engine_bytes + tokens * needed.kv_bytes_per_token) / 0.9 / GIB for tokens in (8100, 8300)}
    found = [fit(job, MODEL, card(f"{gib:.2f}")) for gib in sizes.values()]
    assert [each.fits for each in found] == [False, True]
    assert dict(found[0].change) == {"rollout.gpusPerEngine": 2}


def test_a_cache_whose_size_the_manifest_gives_is_counted_with_the_rest():
    job = load(MOE.replace("gpusPerNode: 8", SPREAD).replace("rollout: {", "rollout: {maxTotalTokens: 100000, "))
    assert fit(job, MODEL, card("H100-80")).kv_tokens is None


@pytest.mark.parametrize("text", ["V100", "", "0", "2000", "H100 80", "-4", "1e3"])
def test_an_unknown_gpu_is_refused_with_those_that_are_known(text: str):
    with pytest.raises(UnknownCardError, match="is neither one of A10G, L4"):
        card(text)


@pytest.mark.parametrize(
    ("text", "name"), [("h100-80", "H100-80"), ("A100", "A100-40"), ("48", "48 GiB"), ("40G", "40 GiB")]
)
def test_a_gpu_has_a_name_or_a_size(text: str, name: str):
    assert card(text).name == name


def test_cards_are_in_the_order_of_their_memory():
    assert list(CARDS.values()) == sorted(CARDS.values())


def test_on_a_cpu_no_gpu_has_to_fit():
    text = MOE.replace("device: Gpu", "device: Cpu")
    assert not planned(text, "--gpu", "24").stdout.startswith(("fits", "does not"))
