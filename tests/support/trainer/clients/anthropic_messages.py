"""A loop with a tool over Anthropic's messages, the first one streamed."""

import json
import os

from anthropic import Anthropic

MAX_TOKENS = int(os.environ["MAX_TOKENS"])

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}

client = Anthropic(base_url=os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), api_key=os.environ["OPENAI_API_KEY"])
ask = {"model": "policy", "system": "Add.", "tools": [ADD], "max_tokens": MAX_TOKENS}

messages = [{"role": "user", "content": os.environ["QUESTION"]}]
with client.messages.stream(messages=messages, **ask) as stream:
    first = stream.get_final_message()
results = [
    {"type": "tool_result", "tool_use_id": block.id, "content": str(sum(block.input.values()))}
    for block in first.content
    if block.type == "tool_use"
]
messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results or "Go on."}]
second = client.messages.create(messages=messages, **ask)
print(json.dumps({"text": "".join(block.text for block in second.content if block.type == "text")}))
