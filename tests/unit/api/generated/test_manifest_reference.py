"""The reference page is made from the models."""

from pathlib import Path

import pytest

from rljob_api.generated.manifest_page import markdown
from rljob_api.reading import field_lookup, field_types

PAGE = Path(__file__).parents[4] / "docs" / "manifest.md"


@pytest.fixture(scope="module")
def page() -> str:
    """The page as it is generated."""
    return markdown()


def test_the_reference_page_is_current(page):
    assert PAGE.read_text() == page, "make generate"


def test_every_field_has_a_row(page):
    missing = [field_lookup.dotted(path) for path in field_lookup.entries() if f"`{path[-1]}`" not in page]
    assert not missing, missing


@pytest.mark.parametrize(
    ("path", "kind", "default"),
    [
        ("spec.rollout.samplesPerPrompt", "whole number, at least 2, at most 10000", "8"),
        ("spec.rollout.sampling.topP", "number, above 0, at most 1", "1.0"),
        ("spec.rollout.sampling.stop", "list, each a text", "[]"),
        ("spec.placement", "Colocated | Disaggregated", '"Colocated"'),
        ("spec.data.shuffle", "true or false", "true"),
        ("spec.training.stepsPerRollout", "whole number, at least 1", ""),
        ("spec.extraArgs.sglang", "mapping", "{}"),
        ("spec.rollout", "section", None),
        ("apiVersion", "rljob.dev/v1alpha1", None),
    ],
)
def test_a_field_says_what_it_takes(path, kind, default):
    field = field_lookup.entries()[tuple(path.split("."))].field

    assert (field_types.kind(field), field_types.default(field)) == (kind, default)
