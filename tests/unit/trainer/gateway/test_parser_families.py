"""Calls and reasoning of each family through the gateway, whole and streamed, as OpenAI's own client reads them.

The cases are those that SGLang tests its parsers with: one call, several, the same twice, text before, nested
arguments, none, text that is like markers, no call, a call that is cut off, a function that does not exist.
"""

import json
from dataclasses import replace

import pytest

from rljob_trainer.gateway.parsing import Parsers
from support.trainer.scripted_gateway import SETTINGS
from support.trainer.scripted_model import Says

PARAMETERS = {
    "get_weather": {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}},
    "search": {"words": {"type": "string"}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in PARAMETERS.items()
]
ASKED = {"role": "user", "content": "What is the weather?"}
ROOM = replace(SETTINGS, context=4096, new_tokens=32_768, turns=8)
PLAIN = "It rains { today } [1]."
BEFORE = "Let me see.\n"


def written(value):
    return value if isinstance(value, str) else json.dumps(value)


def as_json(name, given, key="arguments"):
    return json.dumps({"name": name, key: given}, ensure_ascii=False)


def qwen(*calls):
    return "\n".join(f"<tool_call>\n{as_json(*call)}\n</tool_call>" for call in calls)


def mistral(*calls):
    return f"[TOOL_CALLS] [{', '.join(as_json(*call) for call in calls)}]"


def llama(*calls):
    return "<|python_tag|>" + "; ".join(as_json(*call, "parameters") for call in calls)


def deepseek(*calls):
    each = (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(given, ensure_ascii=False)}\n```"
        "<｜tool▁call▁end｜>"
        for name, given in calls
    )
    return f"<｜tool▁calls▁begin｜>{chr(10).join(each)}<｜tool▁calls▁end｜>"


def glm(*calls):
    def one(name, given):
        pairs = (f"<arg_key>{key}</arg_key>\n<arg_value>{written(it)}</arg_value>\n" for key, it in given.items())
        return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"

    return "\n".join(one(*call) for call in calls)


def kimi(*calls):
    each = (
        f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>"
        f"{json.dumps(given, ensure_ascii=False)}<|tool_call_end|>"
        for at, (name, given) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(each)}<|tool_calls_section_end|>"


def coder(*calls):
    def one(name, given):
        pairs = (f"<parameter={key}>\n{written(value)}\n</parameter>\n" for key, value in given.items())
        return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def pythonic(*calls):
    def one(name, given):
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"

    return f"[{', '.join(one(*call) for call in calls)}]"


FAMILIES = {
    "qwen25": qwen,
    "mistral": mistral,
    "llama3": llama,
    "deepseekv3": deepseek,
    "glm45": glm,
    "kimi_k2": kimi,
    "qwen3_coder": coder,
    "pythonic": pythonic,
}
OSLO = ("get_weather", {"city": "Oslo"})
CALLS = {
    "one": [OSLO],
    "two": [OSLO, ("search", {"words": "a b"})],
    "the same twice": [OSLO, ("get_weather", {"city": "Rom"})],
    "nested, with braces": [("get_weather", {"city": "Zürich {x}", "where": {"lat": [1, 2]}, "days": 3})],
    "no arguments": [("search", {})],
}
PASSES_UNKNOWN = ("kimi_k2", "qwen3_coder")
"""parsers of SGLang that give out a call of a function that the request does not have; others leave it as text"""


def whole(served):
    message = served.ask([ASKED], tools=TOOLS).choices[0].message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    return message.content or "", calls, getattr(message, "reasoning_content", None) or ""


def streamed(served):
    with served.client() as client:
        stream = client.chat.completions.create(model="any", messages=[ASKED], tools=TOOLS, stream=True)
        deltas = [chunk.choices[0].delta for chunk in stream]
    names, given = {}, {}
    for call in (call for delta in deltas for call in delta.tool_calls or ()):
        names[call.index] = call.function.name or names[call.index]
        given[call.index] = given.get(call.index, "") + (call.function.arguments or "")
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    calls = [(name, json.loads(given[index])) for index, name in names.items()]
    return "".join(delta.content or "" for delta in deltas), calls, reasoning


@pytest.mark.parametrize("read", [whole, streamed])
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_a_family(serve, family, read):
    texts = [before + FAMILIES[family](*calls) for calls in CALLS.values() for before in ("", BEFORE)]
    served = serve([Says(text) for text in texts], replace(ROOM, turns=len(texts)), Parsers(tools=family))
    found = [read(served) for _ in texts]
    assert [calls for _, calls, _ in found] == [calls for calls in CALLS.values() for _ in range(2)]
    assert [content.strip() for content, _, _ in found] == ["", BEFORE.strip()] * len(CALLS)
    assert [turn.said for turn in served.turns] == [f"{text}<|im_end|>" for text in texts]


@pytest.mark.parametrize("read", [whole, streamed])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_a_call_of_a_family_is_text(serve, family, read):
    unknown = FAMILIES[family](("fly", {"city": "Oslo"}))
    served = serve([Says(PLAIN), Says(unknown)], ROOM, Parsers(tools=family))
    assert read(served) == (PLAIN, [], "")
    content, calls, _ = read(served)
    passed = family in PASSES_UNKNOWN
    assert (content, calls) == (("", [("fly", {"city": "Oslo"})]) if passed else (unknown, []))


@pytest.mark.parametrize("family", ["qwen25", "mistral", "llama3", "glm45"])
def test_a_call_that_is_cut_off_is_text_in_a_stream_as_in_a_whole_answer(serve, family):
    cut = FAMILIES[family](OSLO)[:-14]
    served = serve([Says(cut, ends="length")] * 2, ROOM, Parsers(tools=family))
    assert whole(served) == streamed(served) == (cut, [], "")


THOUGHT = "<think>Hm {x}.</think>It rains."
OPENED = "Hm {x}.</think>It rains."
REASONING = {
    ("qwen3", THOUGHT): ("Hm {x}.", "It rains."),
    ("qwen3", "It rains."): ("", "It rains."),
    ("qwen3", "1 < 2 and <b>."): ("", "1 < 2 and <b>."),
    ("qwen3", "<think>Hm"): ("Hm", ""),
    ("glm45", THOUGHT): ("Hm {x}.", "It rains."),
    ("deepseek-v3", THOUGHT): ("Hm {x}.", "It rains."),
    ("deepseek-r1", THOUGHT): ("Hm {x}.", "It rains."),
    ("deepseek-r1", OPENED): ("Hm {x}.", "It rains."),
    ("deepseek-r1", "Hm"): ("Hm", ""),
    ("qwen3-thinking", OPENED): ("Hm {x}.", "It rains."),
    ("minimax", OPENED): ("Hm {x}.", "It rains."),
    ("kimi", "◁think▷Hm {x}.◁/think▷It rains."): ("Hm {x}.", "It rains."),
}
"""by family and text: reasoning and content. In some families the prompt has the first marker already"""


@pytest.mark.parametrize("read", [whole, streamed])
@pytest.mark.parametrize(("family", "text"), list(REASONING))
def test_reasoning_of_a_family(serve, family, text, read):
    content, calls, reasoning = read(serve([Says(text)], ROOM, Parsers(reasoning=family)))
    assert ((reasoning, content), calls) == (REASONING[family, text], [])


@pytest.mark.parametrize("read", [whole, streamed])
def test_reasoning_before_a_call(serve, read):
    text = OPENED + qwen(OSLO)
    served = serve([Says(text)], ROOM, Parsers(tools="qwen25", reasoning="deepseek-r1"))
    assert read(served) == ("It rains.", [OSLO], "Hm {x}.")
