"""The generate function that a manifest names: found, checked and called."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rljob_trainer import user_code
from rljob_trainer.conversations.conversation import Conversation
from rljob_trainer.conversations.errors import ConversationOverError, GenerateError
from rljob_trainer.engines.client import EngineError
from rljob_trainer.generator import GenerationFailedError, RolloutTimeoutError
from rljob_trainer.reporting.losses import AwayError
from rljob_trainer.samples import Sample

log = logging.getLogger(__name__)

Generate = Callable[[Conversation], Awaitable[str | None]]
"""makes one sample of the prompt; returns what is judged, or None for the model's last answer"""

OURS = (GenerateError, GenerationFailedError, RolloutTimeoutError, EngineError, AwayError)
"""not the function's fault, or already clear"""


@dataclass(frozen=True, slots=True)
class Function:
    """A generate function."""

    name: str
    """for messages: the field that names it, and its value"""
    call: Generate

    async def sample(self, conversation: Conversation) -> Sample:
        """Make a sample. Raises GenerateError, AwayError and the errors of the engines."""
        conversation.begin()
        try:
            judged = await self.call(conversation)
        except ConversationOverError:
            judged = None
        except OURS:
            raise
        except Exception as error:
            log.exception("action=generate failed function=%s", self.name)
            raise self._error(conversation, f"failed with {type(error).__name__}: {error}") from error
        if judged is not None and not isinstance(judged, str):
            raise self._error(conversation, f"returned {judged!r:.60}; a text to judge, or None, is wanted")
        try:
            return conversation.sample(judged)
        except GenerateError as error:
            raise GenerateError(f"{self.name}: {error}") from error

    def _error(self, conversation: Conversation, what: str) -> GenerateError:
        return GenerateError(f"{self.name}: prompt {conversation.prompt.uid}: {what}")


def load(path: str) -> Function:
    """Return the function that `module:function` names. Raises GenerateError if it cannot make samples."""
    name = f"rollout.generate {path}"
    try:
        function = user_code.load(path)
    except user_code.NotThereError as error:
        raise GenerateError(f"{name}: {error}") from error
    if not inspect.iscoroutinefunction(function):
        raise GenerateError(f"{name} is no `async def` function: it could not wait for the model")
    try:
        inspect.signature(function).bind("conversation")
    except TypeError as error:
        raise GenerateError(f"{name} takes {inspect.signature(function)}; expected (conversation): {error}") from error
    return Function(name, function)
