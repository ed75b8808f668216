"""The questions, row by row, in the trainer's own words: what it would refuse, and what it would take and should not.

Reads what `spec.data` names with the trainer's readers, which need neither torch nor transformers.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from rljob_api.errors import ABSENT, Problem
from rljob_api.rules.names import closest
from rljob_api.sections import Data, RewardKind, Spec
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.rows import RawRow, Row, row
from rljob_trainer.preflight import unused
from rljob_trainer.preflight.findings import Findings, total
from rljob_trainer.rundir.retries import judge_volume
from rljob_trainer.text import some

TRAIN = "spec.data.train."
NAMED = 3
"""rows that a message names"""
MOST_FAULTS = 10_000
"""rows that cannot be used; the rest of such a source is not read"""
COMPARED = 100
"""such rows, and keys of each, in which a key is looked for that was probably meant"""
EXACT = (RewardKind.MATH, RewardKind.EXACT_MATCH)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one source."""

    field: str
    """`spec.data.train.jsonl`"""
    good: tuple[Row, ...]
    faults: tuple[tuple[str, str], ...]
    """(place, what is wrong) of rows that cannot be used"""
    nearest: str | None = None
    """a key that the rows have in place of one that they have not"""
    is_whole: bool = True
    """whether these are all rows of the source"""
    media: tuple[tuple[str, str], ...] = ()
    """(place, what) of rows with pictures, videos or sounds"""
    tools: tuple[tuple[str, str], ...] = ()
    """(place, column) of rows that describe tools"""


def read_rows(field: str, rows: Iterable[tuple[str, RawRow]], data: Data, conversations: bool = False) -> Rows:
    """Check every row, which with `conversations` may be a whole one; what ends the reading itself is a fault, too."""
    good, faults, nearest = [], [], None
    media, tools = [], []
    try:
        for place, raw in rows:
            try:
                good.append(found := row(raw, place, data, conversations))
                if (medium := unused.media(raw, found)) is not None:
                    media.append((place, medium))
                if (column := unused.tools(raw, data)) is not None:
                    tools.append((place, column))
            except DataError as error:
                faults.append((place, str(error).removeprefix(f"{place}: ")))
                nearest = nearest or (near(raw, data) if len(faults) <= COMPARED else None)
                if len(faults) == MOST_FAULTS:
                    break
    except DataError as error:  # invalid JSON, or an unreadable file
        judge_volume(error)
        place, _, reason = str(error).partition(": ")
        faults.append((place, reason))
    return Rows(field, tuple(good), tuple(faults), nearest, media=tuple(media), tools=tuple(tools))


def near(raw: RawRow, data: Data) -> str | None:
    """Return the field and the key that was probably meant by the first key that a row has not."""
    asked = {"inputKey": data.input_key, "labelKey": data.label_key, "metadataKey": data.metadata_key}
    for name, key in asked.items():
        if key is not None and key not in raw and key.partition(".")[0] not in raw:
            meant = closest(key, tuple(islice(raw, COMPARED)))
            return f"spec.data.{name}: {meant}" if meant else None
    return None


def judge_rows(spec: Spec, rows: Rows) -> Findings:
    """Return what is wrong with the rows of one source."""
    problems, warnings = [*refused(rows)], [*repeated(rows), *ignored(spec, rows)]
    if unlabelled := [each.place for each in rows.good if not each.label.strip()]:
        rule = "no label (spec.data.labelKey is empty there)"
        exact = [part.kind for part in spec.reward.judgings if part.kind in EXACT]
        if spec.is_sft:
            problems.append(about(rows, unlabelled, f"{rule}: there is no response to learn"))
        elif exact:
            never = f"{rule}: spec.reward.kind {exact[0]} rewards nothing"
            problems.append(about(rows, unlabelled, never))
        else:
            warnings.append(about(rows, unlabelled, rule))
    if not rows.good and not rows.faults:
        problems.append(Problem(rows.field, ABSENT, "holds no row"))
    return Findings(tuple(problems), tuple(warnings))


def judge_split(rows: Sequence[Rows]) -> Findings:
    """Return whether questions are left to train on: none that is measured on is."""
    trained = [each for each in rows if each.field.startswith(TRAIN) and each.is_whole]
    measured = {row.turns for each in rows if not each.field.startswith(TRAIN) for row in each.good}
    return total(none_left(each) for each in trained if each.good and all(row.turns in measured for row in each.good))


def none_left(rows: Rows) -> Findings:
    read = len(rows.good)
    rule = f"no question is left to train on: all {read} are in spec.data.heldOut or spec.data.evaluationSets"
    return Findings((Problem(rows.field, ABSENT, rule, f"a limit there that is below {read}, or other questions"),))


def refused(rows: Rows) -> Iterator[Problem]:
    """Yield a problem for each kind of fault."""
    kinds: dict[str, list[str]] = {}
    for place, reason in rows.faults:
        kinds.setdefault(reason, []).append(place)
    for reason, where in kinds.items():
        yield about(rows, where, reason, rows.nearest if "no key" in reason else None)


def repeated(rows: Rows) -> Iterator[Problem]:
    """Yield duplicate questions, and questions with contradicting labels."""
    first: dict[object, Row] = {}
    twice: list[str] = []
    contradicted: list[str] = []
    for each in rows.good:
        before = first.setdefault(each.turns, each)
        if before is not each:
            again = f"{each.place} as {number(before.place)}"
            (twice if each.label == before.label else contradicted).append(again)
    if twice:
        yield about(rows, twice, "a question again: it weighs more than others")
    if contradicted:
        yield about(rows, contradicted, "a question again with another label: one of them is wrong")


def ignored(spec: Spec, rows: Rows) -> Iterator[Problem]:
    """Yield what rows have that is not used."""
    if rows.media:
        rule = "images, videos and audio are not used: models are trained on text alone"
        yield about(rows, [place for place, _ in rows.media], f"has {rows.media[0][1]}; {rule}")
    has_function = spec.rollout.generate is not None or spec.rollout.agent is not None
    if rows.tools and not has_function:  # a function of the user's own gets the row
        rule = "tools of a row are not used: the model does not see them"
        if not spec.is_sft:
            rule += "; spec.rollout.tools.functions names what it may call"
        yield about(rows, [place for place, _ in rows.tools], f"has `{rows.tools[0][1]}`; {rule}")


def about(rows: Rows, where: Sequence[str], rule: str, nearest: str | None = None) -> Problem:
    """Return a problem of some rows: `line 3, 17 and 4 more: no key ...`. The field says which file they are in."""
    noun = "row" if rows.field.endswith("parquet") else "line"
    numbers = [number(place) for place in where]
    lines = f"{noun}{'s' * (len(where) > 1)} {some(numbers, NAMED)}: " if all(numbers[:NAMED]) else ""
    return Problem(rows.field, ABSENT, f"{lines}{rule}", nearest)


def number(place: str) -> str:
    """Return the number of a row, and what follows it, from its place: `questions.jsonl:12`, `p.parquet row 3`."""
    found = re.search(r"(?::| row )(\d+.*)$", place)
    return found[1] if found else ""
