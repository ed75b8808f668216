"""An agent of OpenAI's Agents SDK with a tool and a second message, over responses, its default."""

import json
import os

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled

MAX_TOKENS = int(os.environ["MAX_TOKENS"])

set_tracing_disabled(True)  # traces would go to OpenAI


@function_tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


agent = Agent(
    name="Adder", instructions="Add.", tools=[add], model="policy", model_settings=ModelSettings(max_tokens=MAX_TOKENS)
)
first = Runner.run_sync(agent, os.environ["QUESTION"], max_turns=4)
longer = [*first.to_input_list(), {"role": "user", "content": "Go on."}]
second = Runner.run_sync(agent, longer, max_turns=4)
print(json.dumps({"text": first.final_output, "again": second.final_output}))
