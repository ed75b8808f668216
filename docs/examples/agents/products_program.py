"""The agent of `products.py` as a program: it reads its task from standard input, and writes the reward.

    spec.rollout.agent.command: [python, -m, products_program]

It finds the model by OPENAI_BASE_URL and OPENAI_API_KEY, as every program with OpenAI's SDK does.
"""

import json
import re
import sys

from openai import OpenAI
from products import MESSAGES


def main() -> None:
    """Let the model ask the calculator, at most twice; write the reward."""
    task = json.load(sys.stdin)
    messages = [*MESSAGES, {"role": "user", "content": task["question"]}]
    with OpenAI() as client:
        for _ in range(3):
            answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=16)
            said = answer.choices[0].message
            asked = re.fullmatch(r"calculate (\d{1,9}) \* (\d{1,9})", said.content.strip())
            if asked is None:
                break
            messages += [said, {"role": "user", "content": str(int(asked[1]) * int(asked[2]))}]
    json.dump({"reward": float(said.content.strip() == task["label"])}, sys.stdout)


if __name__ == "__main__":
    main()
