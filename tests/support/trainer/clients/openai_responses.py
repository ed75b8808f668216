"""A loop with a tool over responses, each continued by the name of the one before, then one with an edited history."""

import json
import os

from openai import OpenAI

MAX_TOKENS = int(os.environ["MAX_TOKENS"])

ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}

client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
ask = {"model": "policy", "instructions": "Add.", "tools": [ADD], "max_output_tokens": MAX_TOKENS}

with client.responses.create(input=os.environ["QUESTION"], stream=True, **ask) as stream:
    first = next(event.response for event in stream if event.type in ("response.completed", "response.incomplete"))
results = [
    {"type": "function_call_output", "call_id": item.call_id, "output": str(sum(json.loads(item.arguments).values()))}
    for item in first.output
    if item.type == "function_call"
]
given = results or [{"role": "user", "content": "Go on."}]
second = client.responses.create(input=given, previous_response_id=first.id, **ask)
edited = [{"role": "user", "content": os.environ["QUESTION"]}, {"role": "assistant", "content": "No."}]
third = client.responses.create(input=[*edited, {"role": "user", "content": "Again."}], **ask)
print(json.dumps({"text": second.output_text, "again": third.output_text}))
