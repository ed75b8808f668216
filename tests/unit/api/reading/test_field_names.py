"""What somebody meant by a name that no field has."""

import re
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field
from pydantic.fields import FieldInfo

from rljob_api.reading import field_lookup, field_types, manifest
from rljob_api.sections import RLJob
from support.tables import each_of

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("section", "name", "meant"),
    [
        ("spec.rollout", "temperature", "spec.rollout.sampling.temperature"),
        ("spec.rollout", "samples_per_prompt", "spec.rollout.samplesPerPrompt"),
        ("spec.rollout", "samplesPerPromt", "spec.rollout.samplesPerPrompt"),
        ("spec.rollout", "n_samples_per_prompt", "spec.rollout.samplesPerPrompt"),
        ("spec.rollout", "--rollout-batch-size", "spec.rollout.promptsPerStep"),
        ("spec.rollout", "rolloutNumGpusPerEngine", "spec.rollout.gpusPerEngine"),
        ("spec.rollout", "tp-size", "spec.rollout.gpusPerEngine"),
        ("spec.rollout", "async-buffer-size", "spec.rollout.async.maxStaleness"),
        ("spec.training", "lr", "spec.training.optimizer.learningRate"),
        ("spec.training", "clip_grad", "spec.training.optimizer.clipGrad"),
        ("spec.training", "tensor_model_parallel_size", "spec.training.tensorParallel"),
        ("spec.training", "recompute-num-layers", "spec.training.recompute"),
        ("spec.algorithm", "eps_clip_c", "spec.algorithm.dualClip"),
        ("spec.algorithm", "useTis", "spec.algorithm.importanceSampling.kind"),
        ("spec.algorithm", "normalize_advantages", "spec.algorithm.normalizeBy"),
        ("spec", "colocate", "spec.placement"),
        ("spec", "hf_checkpoint", "spec.model.checkpoint"),
        ("spec", "interval", "spec.evaluation.interval or spec.checkpoint.interval"),
        ("spec.rollout", "sglang-schedule-policy", "spec.extraArgs.sglang.schedule-policy"),
        ("", "specs", "spec"),
        ("spec", "zebra", None),
    ],
)
def test_a_name_from_elsewhere_leads_to_the_field(section, name, meant):
    assert field_lookup.meant(tuple(filter(None, section.split("."))), name) == meant


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("--use-fault-tolerance", "engines are always watched, see spec.recovery"),
        ("use_dynamic_batch_size", "samples are always packed, up to spec.training.maxTokensPerGpu"),
        ("rollout-batch-size", None),
    ],
)
def test_a_name_that_needs_no_field_says_why(name, reason):
    assert field_lookup.needless(name) == reason


@pytest.mark.parametrize("name", field_lookup.LACKING)
def test_a_name_of_what_is_lacking_is_no_field_and_says_where_the_list_is(name):
    said = field_lookup.lacking(name.replace("-", "_"))
    assert said is not None and said.startswith("rljob has no ")
    page, _, anchor = field_lookup.LACKING_PAGE.partition("#")
    assert f"## {anchor.replace('-', ' ')}".lower() in (ROOT / page).read_text().lower()
    assert not any(path[-1] == name for path in field_lookup.entries())


@each_of(field_lookup.OTHERS.items())
def test_a_name_of_another_system_leads_to_a_field_that_exists(name, field):
    assert field_lookup.meant(("spec",), name.replace("-", "_")) == field
    assert tuple(field.split(".")) in field_lookup.entries()


@pytest.mark.parametrize(("name", "reason"), field_lookup.NEEDLESS.items())
def test_the_reason_why_a_name_needs_no_field_is_half_a_sentence_with_fields_that_exist(name, reason):
    assert field_lookup.needless(name.replace("-", "_")) == reason
    assert re.fullmatch(r"[a-z].*[a-zA-Z]", reason)
    assert all(tuple(path.split(".")) in field_lookup.entries() for path in re.findall(r"spec[\w.]+", reason))


@each_of(sorted({p for paths in field_lookup.flags().values() for p in paths}), field_lookup.dotted)
def test_every_flag_in_a_text_leads_back_to_its_field(path):
    flags = [flag for flag, paths in field_lookup.flags().items() if path in paths]

    assert all(field_lookup.dotted(path) in (field_lookup.exactly(flag) or "") for flag in flags)


def test_every_field_has_a_text():
    assert [field_lookup.dotted(path) for path, entry in field_lookup.entries().items() if not entry.text] == []


def test_sections_come_before_their_fields():
    paths = list(field_lookup.entries())

    assert all(not path[:-1] or paths.index(path[:-1]) < at for at, path in enumerate(paths))


def test_all_top_level_fields_are_entries():
    assert {path[0] for path in field_lookup.entries()} == {
        field.alias or name for name, field in RLJob.model_fields.items()
    }


def test_fields_of_sections_in_a_list_are_known_and_stay_out_of_the_search():
    entry = field_lookup.entries()["spec", "reward", "parts", "kind"]

    assert entry.in_list
    assert entry not in field_lookup.outside_lists()


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [
        ({"ge": 0, "le": 1}, "number, at least 0, at most 1"),
        ({"gt": 0, "lt": 0.5}, "number, above 0, below 0.5"),
    ],
)
def test_a_number_is_described_with_its_bounds(bounds, kind):
    assert field_types.kind(FieldInfo.from_annotation(Annotated[float, Field(**bounds)])) == kind


@pytest.mark.parametrize(
    ("loc", "fields"),
    [
        ("spec.interval", {"spec.interval", "spec.evaluation.interval", "spec.checkpoint.interval"}),
        ("spec.evaluation.Interval", {"spec.evaluation.Interval", "spec.evaluation.interval"}),
    ],
)
def test_an_unknown_name_leaves_all_fields_open_that_it_may_mean(loc, fields):
    error = {"type": "extra_forbidden", "loc": tuple(loc.split(".")), "msg": "", "input": 1}

    assert {field_lookup.dotted(path) for path in manifest.touched(error)} - {""} == fields


def test_a_type_is_named_also_where_there_is_no_field():
    assert manifest.wanted({"type": "bool_type", "loc": ("status", "x"), "msg": "", "input": 1}) == "bool"
