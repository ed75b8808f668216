"""What a chat template puts around the turns of a conversation, found by rendering marked conversations.

Templates are programs (Jinja), so their habits are observed, not read. Rendering [user 1, assistant 1, user 2] gives

    head  user 1  user_to_assistant  assistant 1  assistant_to_user  user 2  user_end

and the shorter [user 1, assistant 1] shows where `assistant_to_user` parts into the end of one turn and the start of
the next. What stands in the head before the start of a user's turn is a begin-of-text token, and in some templates
(SmolLM2, Qwen2.5, Llama 3) an unrequested system turn.
"""

from collections.abc import Callable, Sequence

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.messages import Message

Render = Callable[[Sequence[Message], bool], str]
"""(messages, whether to open the assistant's turn) -> text"""

USER_1 = Message("user", "first-user-marker")
ASSISTANT_1 = Message("assistant", "first-assistant-marker")
USER_2 = Message("user", "second-user-marker")
DIALOGUE = (USER_1, ASSISTANT_1, USER_2)


def default_system_turn(render: Render, bos_token: str) -> str:
    """Return what the template puts before a first user turn besides the begin-of-text token; "" if nothing.

    Raises DataError if the template is too unusual to decide.
    """
    head, _, assistant_to_user, _ = _between(DIALOGUE, render(DIALOGUE, False))
    assistant_end = _between(DIALOGUE[:2], render(DIALOGUE[:2], False))[-1]
    user_start = assistant_to_user.removeprefix(assistant_end)
    if not assistant_to_user.startswith(assistant_end) or not head.endswith(user_start):
        raise DataError("cannot decide whether the chat template adds its own system turn; set data.systemPrompt")
    return head.removesuffix(user_start).removeprefix(bos_token)


def assistant_end(render: Render) -> str:
    """Return what the template writes after the assistant's turn, without the white space at its end; "" if nothing."""
    return _between(DIALOGUE[:2], render(DIALOGUE[:2], False))[-1].rstrip()


def opens_assistant_turn(render: Render) -> bool:
    """Return whether asking for a generation prompt gives one.

    Templates that mark only the user's turns ([INST] ... [/INST]) need none.
    """
    _, user_to_assistant, _, user_end = _between(DIALOGUE, render(DIALOGUE, False))
    asked = _between(DIALOGUE, render(DIALOGUE, True))[-1]
    assistant_start = user_to_assistant.removeprefix(user_end)
    return not assistant_start.strip() or asked.removeprefix(user_end).strip() != ""


def _between(messages: Sequence[Message], text: str) -> list[str]:
    """Return the pieces of text before, between and after the contents of the messages."""
    pieces = []
    for message in messages:
        piece, found, text = text.partition(message.content)
        if not found:
            raise DataError("the chat template does not write all turns in their order; set data.chatTemplate to false")
        pieces.append(piece)
    return [*pieces, text]
