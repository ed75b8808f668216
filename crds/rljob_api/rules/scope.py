"""Fields that only some runs read: in a cluster, with a learner, with engines. Elsewhere they have no effect."""

from collections.abc import Iterator

from rljob_api.facts import Needs, facts
from rljob_api.rules.terms import SPEC, Field, default, fields_of, is_always_there
from rljob_api.sections import Spec


def needs_of(section: Field, above: Needs) -> Iterator[tuple[Field, Needs]]:
    """Yield the fields of a section with what they need, then those of its sections.

    A section that may be absent counts as one field.
    """
    fields = fields_of(section)
    yield from ((each, needs(each, above)) for each in fields if not has_fields(each))
    for each in filter(has_fields, fields):
        yield from needs_of(each, needs(each, above))


def needs(field: Field, above: Needs) -> Needs:
    """Return what a field needs, in a section that needs what is `above`."""
    own = facts(field.route[-1][1]).needs
    return above if own is None else own


def has_fields(field: Field) -> bool:
    """Return whether a field is a section that is always there."""
    return field.section is not None and field.cel_type != "list" and is_always_there(field.route[-1])


NEEDS = tuple(needs_of(SPEC, Needs.NOTHING))


def needing(parts: Needs) -> tuple[Field, ...]:
    """Return the fields that have no effect where these parts of a run are missing."""
    return tuple(field for field, needed in NEEDS if needed & parts)


CLUSTER_ONLY = needing(Needs.CLUSTER)
"""`rljob run` names those that are set"""
LEARNER_ONLY = needing(Needs.LEARNER)
"""they may stay, so that one field turns debug.rolloutOnly on"""
ENGINES_ONLY = needing(Needs.ENGINES | Needs.EVALUATION)
"""they say nothing about the samples that the engines made"""


def only_in_a_cluster(spec: Spec) -> tuple[str, ...]:
    """Return the fields that are set and that a run on one machine does not read."""
    return are_set(spec, CLUSTER_ONLY)


def left_out(spec: Spec) -> tuple[str, ...]:
    """Return the fields that are set and that `spec.debug` leaves without effect."""
    learner, engines = () if spec.debug.learner else LEARNER_ONLY, () if spec.debug.engines else ENGINES_ONLY
    return are_set(spec, (*learner, *engines))


def are_set(spec: Spec, fields: tuple[Field, ...]) -> tuple[str, ...]:
    return tuple(field.at for field in fields if field.of(spec) != default(field))
