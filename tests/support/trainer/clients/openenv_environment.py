"""An environment of OpenEnv behind its own server, a number to guess; the model plays it over chat completions."""

import json
import os
import re
import socket
import threading

import uvicorn
from openai import OpenAI
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

MAX_TOKENS = int(os.environ["MAX_TOKENS"])

WANTED = 5
TURNS = 3


class Guess(Action):
    number: int


class Hint(Observation):
    text: str = ""


class GuessingGame(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(step_count=0)

    def reset(self, seed=None, episode_id=None, **more):
        self._state = State(episode_id=episode_id, step_count=0)
        return Hint(text="Guess a number from 1 to 9.")

    def step(self, action, timeout_s=None, **more):
        self._state.step_count += 1
        if action.number == WANTED:
            return Hint(text="Right.", done=True, reward=1.0)
        text = "Larger." if action.number < WANTED else "Smaller."
        return Hint(text=text, done=self._state.step_count >= TURNS, reward=0.0)

    @property
    def state(self):
        return self._state


listening = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(create_fastapi_app(GuessingGame, Guess, Hint), log_level="error"))
threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()

client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
with GenericEnvClient(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}").sync() as env:
    result = env.reset()
    messages = [{"role": "system", "content": os.environ["QUESTION"]}]
    while not result.done:
        messages.append({"role": "user", "content": result.observation["text"]})
        said = (
            client.chat.completions.create(model="policy", messages=messages, max_tokens=MAX_TOKENS).choices[0].message
        )
        messages.append({"role": "assistant", "content": said.content})
        found = re.search(r"\d", said.content)
        result = env.step({"number": int(found[0]) if found else 0})
print(json.dumps({"reward": result.reward, "turns": len(messages) // 2}))
