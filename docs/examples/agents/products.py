"""An agent with a calculator, written with OpenAI's SDK; nothing in it knows rljob.

    spec.rollout.agent.function: products:run

Its directory must be on PYTHONPATH where the job runs.
"""

import re

from openai import AsyncOpenAI

EXAMPLES = ("12 * 34", "calculate 12 * 34", "408", "408", "51 * 20", "calculate 51 * 20", "1020", "1020")
MESSAGES = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(EXAMPLES)]


async def run(task, base_url, api_key):
    """Let the model ask the calculator, at most twice; return the reward."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [*MESSAGES, {"role": "user", "content": task["question"]}]
        for _ in range(3):
            answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=16)
            said = answer.choices[0].message
            asked = re.fullmatch(r"calculate (\d{1,9}) \* (\d{1,9})", said.content.strip())
            if asked is None:
                break
            messages += [said, {"role": "user", "content": str(int(asked[1]) * int(asked[2]))}]
        return float(said.content.strip() == task["label"])
