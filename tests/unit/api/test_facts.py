"""Facts of fields: the text that they make, and the names in other systems."""

from typing import Annotated

import pytest
from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from rljob_api.facts import CLUSTER, ENGINES, Facts, named, text, values
from rljob_api.sections import Rollout, Sampling, Spec


def field(*facts: Facts) -> FieldInfo:
    kind = Annotated[int, facts[0]] if facts else int
    return create_model("Pod", limit=(kind, Field(description="limit of a pod"))).model_fields["limit"]


@pytest.mark.parametrize(
    ("facts", "added"),
    [
        (Facts(), ""),
        (Facts(ENGINES), ""),
        (Facts(CLUSTER), ". Only in a cluster"),
        (Facts(CLUSTER, kubernetes="the same"), ". Only in a cluster. Kubernetes: the same"),
        (Facts(slime="a-b"), ". slime: --a-b"),
        (Facts(sglang="tp-size", slime=("a", "b (twice)")), ". slime: --a, --b (twice), SGLang: --tp-size"),
        (Facts(megatron="virtual_pipeline"), ". Megatron: virtual_pipeline"),
    ],
)
def test_a_field_s_text_ends_with_its_facts(facts: Facts, added: str):
    assert text(field(facts)) == f"limit of a pod{added}"


def test_a_field_without_facts_has_its_own_text():
    assert text(field()) == "limit of a pod"


def test_a_name_is_the_first_of_its_words():
    facts = Facts(slime=("kl-loss-coef (loss)", "kl-coef (reward)"), megatron="no_flag")

    assert facts.names("slime") == ("kl-loss-coef", "kl-coef")
    assert facts.flags == ("kl-loss-coef", "kl-coef")


def test_the_values_of_a_section_come_by_their_names_without_absent_ones():
    sampling = Sampling(max_new_tokens=5, top_k=3)
    rollout = Rollout(prompts_per_step=1, sampling=sampling, memory_fraction=0.5)

    assert values(rollout, "sglang") == {"tp-size": 1, "mem-fraction-static": 0.5}
    assert values(rollout, "slime")["rollout-top-k"] == 3


def test_names_lead_to_paths():
    assert named(Spec, "sglang")["context-length"] == "rollout.contextLength"
