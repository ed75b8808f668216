"""A loop with a tool over chat completions, streamed, then a summary of it in place of the history."""

import json
import os

from openai import OpenAI

MAX_TOKENS = int(os.environ["MAX_TOKENS"])

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}

client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])


def ask(messages):
    """Return the message of a stream, put together as its readers do."""
    said = {"role": "assistant", "content": ""}
    asked = {"model": "policy", "messages": messages, "tools": [ADD], "max_tokens": MAX_TOKENS}
    for chunk in client.chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta
        said["content"] += delta.content or ""
        for call in delta.tool_calls or ():
            calls = said.setdefault("tool_calls", [])
            if call.id:
                function = {"name": call.function.name, "arguments": ""}
                calls.append({"id": call.id, "type": "function", "function": function})
            calls[call.index]["function"]["arguments"] += call.function.arguments or ""
    return said


question = {"role": "user", "content": os.environ["QUESTION"]}
messages = [{"role": "system", "content": "Add."}, question]
for _ in range(2):
    said = ask(messages)
    messages.append(said)
    for call in said.get("tool_calls", ()):
        result = str(sum(json.loads(call["function"]["arguments"]).values()))
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    if "tool_calls" not in said:
        messages.append({"role": "user", "content": "Go on."})
summary = {"role": "user", "content": f"{question['content']} So far: {said['content']}"}
last = client.chat.completions.create(model="policy", messages=[summary], max_tokens=MAX_TOKENS)
print(json.dumps({"text": last.choices[0].message.content}))
