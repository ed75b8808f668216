"""An environment of verifiers with a tool and a rubric, evaluated as its users do."""

import json
import os

import verifiers as vf
from datasets import Dataset

MAX_TOKENS = int(os.environ["MAX_TOKENS"])


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the one
        b: the other
    """
    return a + b


def right(completion, answer) -> float:
    """Return whether the last message has the answer."""
    return float(answer in (completion[-1].content or ""))


environment = vf.ToolEnv(
    tools=[add],
    max_turns=3,
    system_prompt="Add.",
    dataset=Dataset.from_list([{"question": os.environ["QUESTION"], "answer": "5"}]),
    rubric=vf.Rubric(funcs=[right]),
)
client = vf.ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=os.environ["OPENAI_BASE_URL"], max_retries=0)
outputs = environment.evaluate_sync(client, "policy", sampling_args={"max_tokens": MAX_TOKENS}, num_examples=1)
print(json.dumps({"reward": outputs["outputs"][0]["reward"], "error": str(outputs["outputs"][0].get("error") or "")}))
