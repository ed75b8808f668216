"""What somebody meant by a name that no field has."""

import pytest

from rljob_api import names
from rljob_api.sections import RLJob


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
        ("spec.training", "lr", "spec.training.optimizer.learningRate"),
        ("spec.training", "clip_grad", "spec.training.optimizer.clipGrad"),
        ("spec.training", "tensor_model_parallel_size", "spec.training.tensorParallel"),
        ("spec.training", "recompute-num-layers", "spec.extraArgs.megatron.recompute_num_layers"),
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
    assert names.meant(tuple(filter(None, section.split("."))), name) == meant


@pytest.mark.parametrize("path", sorted({p for paths in names.flags().values() for p in paths}), ids=names.dotted)
def test_every_flag_in_a_text_leads_back_to_its_field(path):
    flags = [flag for flag, paths in names.flags().items() if path in paths]

    assert all(names.dotted(path) in (names.exactly(flag) or "") for flag in flags)


def test_every_field_has_a_text():
    assert [names.dotted(path) for path, entry in names.entries().items() if not entry.text] == []


def test_sections_come_before_their_fields():
    paths = list(names.entries())

    assert all(not path[:-1] or paths.index(path[:-1]) < at for at, path in enumerate(paths))


def test_all_top_level_fields_are_entries():
    assert {path[0] for path in names.entries()} == {field.alias or name for name, field in RLJob.model_fields.items()}
