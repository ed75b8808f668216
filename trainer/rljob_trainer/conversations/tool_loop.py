"""The generate function of `rollout.tools`: the model calls tools and continues with their results until it calls none.

model ─► calls ─► tools, in separate processes ─► turns of the role `tool` ─► model ─► ...
"""

import asyncio
from dataclasses import dataclass

from rljob_trainer.conversations.conversation import Conversation
from rljob_trainer.conversations.tool_calls import calls
from rljob_trainer.conversations.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class ToolLoop:
    """Makes samples of a model that calls tools."""

    toolbox: Toolbox
    max_turns: int

    async def __call__(self, conversation: Conversation) -> None:
        """Make a sample; one whose last turn still calls a tool was cut off. Its last turn is judged."""
        for turn in range(1, self.max_turns + 1):
            answer = await conversation.model()
            called = calls(answer.marked)
            if not called or answer.finish_reason == "length":
                return
            if turn == self.max_turns:
                conversation.cut_off()
            results = await asyncio.gather(*map(self.toolbox.result, called))
            names = [getattr(call, "name", "") for call in called]
            conversation.reply(
                *(
                    {"role": "tool", "name": name, "content": result}
                    for name, result in zip(names, results, strict=True)
                )
            )
