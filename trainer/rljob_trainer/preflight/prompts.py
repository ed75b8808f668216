"""Rows as prompts: what the chat template does to them, whether they fit, and whether a response will ever end."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rljob_api.errors import Problem
from rljob_api.sections import Data, Spec
from rljob_api.sizing.model_shape import Shape
from rljob_api.sizing.token_limits import prompt_room
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.rows import Row
from rljob_trainer.data.template import ASSISTANT_1, DIALOGUE, USER_1
from rljob_trainer.preflight.findings import Findings
from rljob_trainer.preflight.model_files import StopToken
from rljob_trainer.preflight.rows import Rows, about
from rljob_trainer.preflight.tokenizer import FileTokenizer

MEASURED = 256
"""rows that are tokenised: those with most characters"""
FOREIGN = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "[INST]", "<|user|>", "<｜User｜>", "<|turn|>user")
"""what opens a user's turn in templates of Qwen, Llama 3, Gemma, Mistral, GLM and Phi, DeepSeek, Gemma 4"""
FOREIGN_SHARE = 0.5
"""of the questions; a few may be about templates"""
MARKER = re.compile(r"<\|[a-z_]+\|>|<｜[^｜<>]+｜>|<(?:start|end)_of_turn>")


@dataclass(frozen=True, slots=True)
class Habits:
    """What a chat template writes around the turns, by its own rendering."""

    markers: tuple[str, ...]
    """special tokens around turns"""
    opening: str
    """what opens the assistant's turn; empty: nothing does"""
    turn_end: str | None
    """the special token that ends the assistant's turn"""
    unknown: tuple[str, ...] = ()
    """what the template writes like a special token, and is none"""


def habits(tokenizer: FileTokenizer) -> Habits:
    """Return the habits of a tokenizer's template. Raises TemplateError."""

    def rendered(number: int, opened: bool) -> str:
        turns = [{"role": turn.role, "content": turn.content} for turn in DIALOGUE[:number]]
        return tokenizer.apply_chat_template(turns, add_generation_prompt=opened)

    asked, closed, answered = rendered(1, True), rendered(1, False), rendered(2, False)
    special = tokenizer.special
    end = answered.partition(ASSISTANT_1.content)[2]
    return Habits(
        markers=tuple(token for token in special if token in answered.replace(USER_1.content, "")),
        opening=asked.removeprefix(closed),
        turn_end=min((token for token in special if token in end), key=end.index, default=None),
        unknown=tuple(dict.fromkeys(each for each in MARKER.findall(answered) if each not in special)),
    )


def judge_template(spec: Spec, tokenizer: FileTokenizer, found: Habits | None, rows: Sequence[Rows]) -> Findings:
    """Return where the template is missing, opens no turn, or would be applied to what has been through it.

    `found` is None where there is no template or none is wanted.
    """
    data = spec.data
    if not data.chat_template:
        return Findings(tuple(two_beginnings(tokenizer, rows)))
    if found is None:
        rule = "has nothing to work with: the model's tokenizer has no chat template"
        return Findings((Problem("spec.data.chatTemplate", True, rule, "false"),))
    return Findings((*twice(data, found, rows), *foreign_rows(found, rows)), tuple(foreign_template(found)))


def two_beginnings(tokenizer: FileTokenizer, rows: Sequence[Rows]) -> Iterator[Problem]:
    """Yield rows that begin with a begin-of-text token where the tokenizer adds one."""
    bos = tokenizer.bos_token
    if bos is None or not tokenizer.adds_bos:
        return
    for source in rows:
        if where := [row.place for row in source.good if row.templated and row.question.startswith(bos)]:
            rule = f"begins with {bos}, and the tokenizer adds one: the prompt would begin with two"
            yield about(source, where, rule, f"a question without {bos}")


def twice(data: Data, found: Habits, rows: Sequence[Rows]) -> Iterator[Problem]:
    """Yield where the markers that the template writes are in what is put into it."""
    texts = {"promptTemplate": data.prompt_template, "systemPrompt": data.system_prompt or ""}
    for name, text in texts.items():
        if marker := marker_in(text, found):
            rule = f"holds {marker}, which the model's chat template writes itself: it would be applied twice"
            yield Problem(f"spec.data.{name}", text, rule, "spec.data.chatTemplate false, or the bare text")
    if found.opening.strip() and found.opening.strip() in data.assistant_prefill:
        rule = "opens the assistant's turn, which the model's chat template has opened already"
        yield Problem("spec.data.assistantPrefill", data.assistant_prefill, rule, "the bare text")
    for source in rows:
        marked = {row.place: marker for row in source.good if (marker := marker_of(row, found))}
        if marked:
            marker = next(iter(marked.values()))
            rule = f"holds {marker}, which the model's chat template writes itself: it would be applied twice"
            yield about(source, list(marked), rule, "spec.data.chatTemplate false, or bare questions")


def foreign_rows(found: Habits, rows: Sequence[Rows]) -> Iterator[Problem]:
    """Yield where most questions have been through the template of another family of models."""
    for source in rows:
        marked = {row.place: marker for row in source.good if (marker := foreign_marker(row, found))}
        if source.good and len(marked) > FOREIGN_SHARE * len(source.good):
            marker = next(iter(marked.values()))
            rule = f"holds {marker}, which another family's chat template writes: the model reads it as plain text"
            yield about(source, list(marked), rule, "bare questions")


def foreign_marker(row: Row, found: Habits) -> str | None:
    texts = (text for turn in row.turns for text in turn.said)
    return next(
        (marker for text in texts for marker in FOREIGN if marker in text and marker not in found.markers), None
    )


def foreign_template(found: Habits) -> Iterator[Problem]:
    """Yield markers that the template writes and the tokenizer does not know."""
    if found.unknown:
        rule = f"writes {', '.join(found.unknown)}, and the tokenizer has no such tokens: it may be of another model"
        yield Problem("spec.model.checkpoint", "chat template", rule, "the chat template of the model")


def marker_of(row: Row, found: Habits) -> str | None:
    texts = (text for turn in row.turns for text in turn.said)
    return next((marker for text in texts if (marker := marker_in(text, found))), None)


def marker_in(text: str, found: Habits) -> str | None:
    return next((marker for marker in found.markers if marker in text), None)


def judge_stops(spec: Spec, found: Habits | None, tokenizer: FileTokenizer, stops: Sequence[StopToken]) -> Findings:
    """Return stop tokens that cannot come, and a turn whose end stops nothing."""
    own, most = spec.rollout.sampling.stop_token_ids, tokenizer.highest_id
    path = "spec.rollout.sampling.stopTokenIds"
    problems = [
        Problem(f"{path}[{place}]", token, f"is outside the vocabulary; its last token is {most}")
        for place, token in enumerate(own)
        if token > most
    ]
    if found is None or found.turn_end is None or spec.rollout.sampling.stop or spec.is_sft:
        return Findings(tuple(problems))
    end = tokenizer.special[found.turn_end]
    if end in own or end in {token.id for token in stops}:
        return Findings(tuple(problems))
    rule = (
        f"lacks {end}: the chat template ends a turn with {found.turn_end}, and responses continue after it,"
        f" to {spec.rollout.sampling.max_new_tokens} tokens"
    )
    return Findings(tuple(problems), (Problem(path, list(own), rule, str([*own, end])),))


def judge_lengths(spec: Spec, model: Shape, tokenizer: FileTokenizer, rows: Sequence[Rows]) -> Findings:
    """Return prompts that leave no room for a response, among the longest; and what the renderer refuses."""
    try:
        renderer = Renderer(spec.data, tokenizer)
    except DataError as error:
        return Findings((Problem("spec.data.chatTemplate", spec.data.chat_template, f"cannot be: {error}", "false"),))
    found = [problem for source in rows for problem in lengths(spec, model, renderer, source)]
    if spec.is_sft and not found:
        found = [problem for source in rows for problem in response_lengths(spec, renderer, source)]
    return Findings(tuple(found))


def response_lengths(spec: Spec, renderer: Renderer, source: Rows) -> Iterator[Problem]:
    """Yield the responses that are too long to be learned, among the longest."""
    new = spec.rollout.sampling.max_new_tokens
    longest = sorted((row for row in source.good if row.label.strip()), key=lambda row: -len(row.label))[:MEASURED]
    sizes = {row.place: len(renderer.reference(row).tokens_T) for row in longest}
    too_long = {f"{place} ({tokens} tokens)": tokens for place, tokens in sizes.items() if tokens > new}
    if too_long:
        rule = f"a response of more than the {new} tokens of spec.rollout.sampling.maxNewTokens"
        yield about(source, list(too_long), rule, str(max(too_long.values())))


def lengths(spec: Spec, model: Shape, renderer: Renderer, source: Rows) -> Iterator[Problem]:
    room = prompt_room(spec, model.longest)
    longest = sorted(source.good, key=lambda row: -sum(len(turn.content) for turn in row.messages))[:MEASURED]
    too_long: dict[str, int] = {}
    for row in longest:
        try:
            tokens = len(renderer.prompt("", row).tokens_T)
            if spec.is_sft and row.label.strip():  # an empty label is reported already
                renderer.reference(row)
        except DataError as error:
            yield about(source, [row.place], str(error).removeprefix(f"{row.place}: "))
            return
        if tokens > room:
            too_long[f"{row.place} ({tokens} tokens)"] = tokens
    if too_long:
        new = spec.rollout.sampling.max_new_tokens
        needed = max(too_long.values()) - room + (spec.rollout.context_length or model.longest)
        rule = f"more than the {room} tokens that the context leaves beside maxNewTokens {new}"
        fits = needed <= model.longest and spec.rollout.max_total_tokens is None
        nearest = f"spec.rollout.contextLength {needed}" if fits else "shorter questions, or a lower maxNewTokens"
        yield about(source, list(too_long), rule, nearest)
