"""Templates and tokenizers of strangers: what takes too much is an error with a reason, and the next one is served."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from rljob_trainer.processes.text_makers import CostlyTemplateError, ForeignFileError, TextMaker

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
NESTED = "{{ " + "(" * 10_000 + "1" + ")" * 10_000 + " }}"
DOUBLES = "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def maker() -> Iterator[TextMaker]:
    made = TextMaker(2**28)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 'x' * 10**10 }}", "too much memory"),
        ("{{ '%0900000000d' % 1 }}", "too much memory"),
        ("{{ 'x'.ljust(10**10) }}", "too much memory"),
        ("{{ [0] * 10**10 }}", "too much memory"),
        (DOUBLES, "memory|processor"),
        (LOOPS, r"more than 1 s of the processor"),
        ("{{ 9 ** (9 ** 9) }}", "processor"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
        (NESTED, "nested too deeply"),
    ],
)
def test_a_template_that_takes_too_much_is_ended_and_the_next_is_served(
    maker: TextMaker, template: str, why: str
) -> None:
    with pytest.raises(CostlyTemplateError, match=why):
        maker.render(template, HELLO)
    assert maker.render(PLAIN, HELLO) == "hello"


def test_a_template_that_explodes_for_one_conversation_only_is_used_for_the_others(maker: TextMaker) -> None:
    template = PLAIN + "{% if messages[0].content == 'bomb' %}{{ 'x' * (messages | length * 10**10) }}{% endif %}"
    assert maker.render(template, HELLO) == "hello"
    with pytest.raises(CostlyTemplateError):
        maker.render(template, {"messages": [{"role": "user", "content": "bomb"}]})
    assert maker.render(template, HELLO) == "hello"


def test_a_constant_is_judged_where_it_is_never_written_because_compiling_computes_it(maker: TextMaker) -> None:
    with pytest.raises(CostlyTemplateError, match="too much memory"):
        maker.render(PLAIN + "{% if false %}{{ 'x' * 10**10 }}{% endif %}", HELLO)


REFUSALS = ("{{ raise_exception('no') }}", "{{ messages.append(1) }}", "{% include '/etc/passwd' %}", "{{ 1 + 'a' }}")


@pytest.mark.parametrize("template", [*REFUSALS, "{% for %}"])
def test_what_a_template_refuses_or_may_not_do_is_a_refusal(maker: TextMaker, template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        maker.render(template, HELLO)
    assert not isinstance(caught.value, CostlyTemplateError)


def test_no_secret_of_the_environment_is_in_the_process(maker: TextMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    maker.close()
    maker.render(PLAIN, HELLO)
    assert maker._process is not None
    assert b"hf_secret" not in Path(f"/proc/{maker._process.pid}/environ").read_bytes()


def test_a_process_that_was_killed_is_started_again(maker: TextMaker) -> None:
    maker.render(PLAIN, HELLO)
    assert maker._process is not None
    maker._process.kill()
    maker._process.wait()
    assert maker.render(PLAIN, HELLO) == "hello"


BASE: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": None, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
}  # fmt: skip
FIXED = {
    "strategy": {"Fixed": 300_000_000}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
    "pad_type_id": 0, "pad_token": "a",
}  # fmt: skip
MULTIPLIES = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}] * 6,
}
BACKTRACKS = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


def tokenizer(directory: Path, **changes: Any) -> Path:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(BASE | changes))
    return path


def test_a_tokenizer_is_read_again_after_its_file_has_changed(maker: TextMaker, tmp_path: Path) -> None:
    path = tokenizer(tmp_path)
    assert maker.vocabulary(path) == {"a": 0, "[UNK]": 1}
    assert maker.encode(path, "a", True) == [0]
    tokenizer(tmp_path, model={"type": "WordLevel", "vocab": {"a": 7, "[UNK]": 1}, "unk_token": "[UNK]"})
    os.utime(path, ns=(1, 1))
    assert maker.encode(path, "a", True) == [7]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"padding": FIXED}, "a"),
        ({"normalizer": MULTIPLIES}, "a"),
        ({"pre_tokenizer": BACKTRACKS}, "a" * 40 + "b"),
        ({"model": {"type": "nothing"}}, "a"),
    ],
    ids=["padding", "normalizer", "backtracking", "unknown"],
)
def test_a_tokenizer_that_aborts_its_process_is_an_error(
    maker: TextMaker, tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ForeignFileError):
        maker.encode(tokenizer(tmp_path, **changes), text, True)
    assert maker.render(PLAIN, HELLO) == "hello"
