"""Rules of `spec.data`, and of the evaluation, which needs questions that are not trained on."""

import re
from collections.abc import Iterator

from rljob_api import hub, objects
from rljob_api.errors import ABSENT, Problem
from rljob_api.rules import arguments
from rljob_api.rules.batches import is_sft
from rljob_api.rules.claims import Rule, Search, elsewhere, only_in_python, requires
from rljob_api.rules.names import closest
from rljob_api.rules.reward import judgings
from rljob_api.rules.terms import (
    SPEC,
    Expression,
    Field,
    Term,
    all_of,
    any_of,
    as_term,
    before,
    contains,
    differs,
    exists,
    fields_of,
    first,
    has,
    is_default,
    matches,
    named,
    one_of,
    size,
    when,
)
from rljob_api.sections import RewardKind, Source, Spec

data, evaluation = SPEC.data, SPEC.evaluation
FILE = re.compile(f"({hub.FILE.pattern}|{objects.REFERENCE.pattern})")
KINDS = ("jsonl", "parquet", "reasoning_gym")
"""ways to give questions, one of which is set"""
GENERATED_COLUMNS = ("question", "answer", "metadata")
"""columns of the rows that reasoning-gym makes"""
QUESTION = as_term("{question}")
EVERY_QUESTION = "holds every question of spec.data.train, and held-out questions are not trained on; set its limit"


def is_readable(file: Field, *unless: Term) -> Rule:
    return requires(
        file,
        any_of(*unless, ~has(file), ~contains(file, "://"), matches(file, FILE)),
        f"is neither a path nor the URL of a file (scheme {before(file, '://')})",
        nearest=Search(lambda spec: _meant(file.of(spec)), says=hub.FILE_FORM),
    )


def _meant(given: str) -> str:
    return hub.of_page(given) or objects.form_of(given, "FILE") or hub.FILE_FORM


@only_in_python("the address of a page is a URL like others: RE2 has no pattern that leaves it out")
def pages(spec: Spec) -> Iterator[Problem]:
    named = [("spec.model.checkpoint", spec.model.checkpoint)]
    if spec.algorithm.teacher is not None:
        named.append(("spec.algorithm.teacher.checkpoint", spec.algorithm.teacher.checkpoint))
    for path, source in spec.data.sources.items():
        given = {"jsonl": source.jsonl, "parquet": source.parquet}
        named += [(f"{path}.{kind}", file) for kind, file in given.items() if file is not None]
    for field, text in named:
        if objects.is_reference(text) and (meant := hub.of_page(text)) is not None:
            yield Problem(field, text, "is the address of a page of the hub, which downloads otherwise", meant)


def one_source(source: Field, *unless: Term) -> tuple[Rule, ...]:
    jsonl, parquet, generated = (when(has(each), (each.alias,), ()) for each in fields_of(source, *KINDS))
    chosen = named(jsonl + parquet + generated)
    # By hand: no other rule joins a list.
    two = f"'%s and %s'.format({chosen.cel})"
    all_of_them = Expression(
        "string",
        f"{chosen.cel}.size() == 3 ? 'jsonl and parquet and reasoningGym' : {two}",
        lambda spec: " and ".join(chosen.of(spec)),
    )
    return (
        *(is_readable(each, *unless) for each in fields_of(source, *KINDS[:2])),
        requires(
            source, any_of(*unless, size(chosen) > 0), "names no questions; set one of jsonl, parquet and reasoningGym"
        ),
        requires(
            source,
            any_of(*unless, size(chosen) < 2),
            f"has {all_of_them}; one source is expected; nearest valid: {first(chosen)}",
        ),
    )


TRAIN = one_source(data.train)


@only_in_python("tasks and their settings are those of the reasoning-gym that the trainer has installed")
def tasks(spec: Spec) -> Iterator[Problem]:
    for path, given in spec.data.sources.items():
        if given.reasoning_gym is not None:
            yield from task(f"{path}.reasoningGym", given.reasoning_gym.task, tuple(given.reasoning_gym.config))


def task(path: str, name: str, settings: tuple[str, ...]) -> Iterator[Problem]:
    known = arguments.tasks()
    if name not in known:
        yield Problem(f"{path}.task", name, "is not a task of reasoning-gym", closest(name, known))
        return
    for setting in settings:
        if setting in ("seed", "size"):
            yield Problem(f"{path}.config.{setting}", ABSENT, "belongs to a field of the manifest", f"{path}.{setting}")
        elif setting not in known[name]:
            near = closest(re.sub(r"(?=[A-Z])", "_", setting).lower(), known[name])
            yield Problem(f"{path}.config.{setting}", ABSENT, f"is not a setting of {name}", near)


def has_other_questions(measured: Field) -> Term:
    """Return the claim that a source does not hold all that is trained on, unless questions are generated."""
    jsonl, parquet = differs(measured.jsonl, data.train.jsonl), differs(measured.parquet, data.train.parquet)
    return has(measured.limit) | jsonl | parquet | has(measured.reasoning_gym) | has(data.train.reasoning_gym)


HELD_OUT = (
    requires(
        evaluation,
        has(data.held_out) | all_of(*map(is_default, fields_of(evaluation))),
        "has nothing to measure on; set spec.data.heldOut",
    ),
    requires(data.held_out, ~has(data.held_out) | has_other_questions(data.held_out), EVERY_QUESTION),
    requires(
        data.evaluation_sets,
        is_sft | (size(data.evaluation_sets) == 0) | has(data.held_out),
        "are measured beside spec.data.heldOut, whose accuracy is the run's"
        "; nearest valid: the first of them as spec.data.heldOut",
    ),
)


@only_in_python("Kubernetes 1.31 takes a comparison of free mappings for too expensive, and with it the whole CRD")
def generated_questions(spec: Spec) -> Iterator[Problem]:
    measured = spec.data.held_out
    if measured is not None and measured.reasoning_gym is not None and holds_all(measured, spec.data.train):
        yield Problem("spec.data.heldOut.reasoningGym", ABSENT, EVERY_QUESTION)


@only_in_python("the API server cannot name an entry of a list: a fieldPath has no index")
def evaluation_sets(spec: Spec) -> Iterator[Problem]:
    sets = spec.data.evaluation_sets
    judged_by_task = any(judging.kind is RewardKind.TASK for _, judging in judgings(spec))
    for index, each in enumerate(sets):
        path = f"spec.data.evaluationSets[{index}]"
        if each.name in [other.name for other in sets[:index]]:
            yield Problem(f"{path}.name", each.name, "is the name of another set already")
        alone = spec.model_copy(update={"data": spec.data.model_copy(update={"train": each})})
        yield from elsewhere(TRAIN, alone, data.train.at, path)
        if holds_all(each, spec.data.train):
            yield Problem(path, ABSENT, EVERY_QUESTION)
        if judged_by_task and each.reasoning_gym is None:
            yield Problem(
                path, ABSENT, f"has no verifier, by which a reward of kind {RewardKind.TASK} judges", "reasoningGym"
            )


def holds_all(measured: Source, trained: Source) -> bool:
    return measured.limit is None and all(getattr(measured, kind) == getattr(trained, kind) for kind in KINDS)


# by hand: a section of which only one field is asked for
some_generated = Expression(
    "bool",
    f"({has(data.train.reasoning_gym).cel} || self.data.?heldOut.?reasoningGym.hasValue()"
    f" || {exists(data.evaluation_sets, 's', lambda each: has(each.reasoning_gym)).cel})",
    lambda spec: any(given.reasoning_gym for given in spec.data.sources.values()),
)


def column(field: Field, usual: str, *unless: Term) -> Rule:
    return requires(
        field,
        any_of(~some_generated, *unless, one_of(before(field, "."), GENERATED_COLUMNS)),
        f"is not a column of reasoning-gym's questions ({', '.join(GENERATED_COLUMNS)}); nearest valid: {usual}",
    )


COLUMNS = (
    column(data.input_key, "question"),
    column(data.label_key, "answer"),
    column(data.metadata_key, "metadata", ~has(data.metadata_key)),
)
TEMPLATES = (
    requires(
        data.prompt_template,
        contains(data.prompt_template, "{question}"),
        f"has no {QUESTION}: every prompt would be the same; nearest valid: {QUESTION}",
    ),
    requires(
        data.system_prompt,
        ~has(data.system_prompt) | data.chat_template,
        "has no turn to stand in: spec.data.chatTemplate is false",
        shows=False,
    ),
)

RULES = (
    *TRAIN,
    *one_source(data.held_out, ~has(data.held_out)),
    tasks,
    pages,
    *HELD_OUT,
    generated_questions,
    evaluation_sets,
    *COLUMNS,
    *TEMPLATES,
)
