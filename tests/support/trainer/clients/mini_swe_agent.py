"""mini-swe-agent with bash over a small repository; its reward is whether the tests of the repository pass."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["MSWEA_SILENT_STARTUP"] = "1"

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

MAX_TOKENS = int(os.environ["MAX_TOKENS"])

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\nassert add(2, 3) == 5\nprint('ok')\n",
}

with tempfile.TemporaryDirectory() as directory:
    for name, text in FILES.items():
        Path(directory, name).write_text(text)
    model = LitellmModel(
        model_name="openai/policy",
        model_kwargs={
            "api_base": os.environ["OPENAI_BASE_URL"],
            "api_key": os.environ["OPENAI_API_KEY"],
            "drop_params": True,
            "max_tokens": MAX_TOKENS,
        },
        cost_tracking="ignore_errors",
        format_error_template="No call: {{ error }}",
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=directory),
        system_template="You use bash.",
        instance_template="{{ task }}",
        step_limit=6,
        max_consecutive_format_errors=2,
    )
    ended = agent.run(f"{os.environ['QUESTION']} Repair calc.py.")
    checked = subprocess.run([sys.executable, "test_calc.py"], cwd=directory, capture_output=True, check=False)
print(json.dumps({"ended": ended["exit_status"], "passed": checked.returncode == 0}))
