"""Rules of `spec.model`, and of every other checkpoint."""

import re

from rljob_api import hub, objects
from rljob_api.rules.claims import Rule, Search, requires
from rljob_api.rules.names import closest
from rljob_api.rules.terms import SPEC, Field, Term, before, contains, matches, one_of
from rljob_api.sizing.known_models import KNOWN

MODEL = re.compile(f"({hub.MODEL.pattern}|{objects.REFERENCE.pattern})")


def is_checkpoint(field: Field) -> Term:
    return ~contains(field, "://") | one_of(field, KNOWN) | matches(field, MODEL)


def known_model(field: Field, holds: Term) -> Rule:
    return requires(
        field,
        holds,
        f"is not a directory, and no model is known by this name (scheme {before(field, '://')})",
        nearest=Search(
            lambda spec: _nearest(field.of(spec)),
            says=f"{hub.MODEL_FORM}, {' or '.join(KNOWN)} or a directory",
        ),
    )


def _nearest(given: str) -> str:
    if hub.is_reference(given):
        return hub.MODEL_FORM
    meant = hub.of_page(given) or objects.form_of(given, "MODEL/")
    return meant or closest(given, KNOWN, cutoff=0.4) or "a directory"


RULES = (known_model(SPEC.model.checkpoint, is_checkpoint(SPEC.model.checkpoint)),)
