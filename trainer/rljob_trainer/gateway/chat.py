"""Answers requests of sessions: what is known of a history stays as it was sampled, the rest is rendered and asked.

Requests wait here while the engines are full, and while an engine is away: an agent sees no error of theirs before
`patience_s`.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rljob_api.sizing.token_limits import new_tokens
from rljob_trainer.conversations import turns as texts
from rljob_trainer.engines.client import Continuation, EngineRefusedError, TokenRequest
from rljob_trainer.engines.gate import Gate
from rljob_trainer.gateway.answers import Choice, Completion
from rljob_trainer.gateway.errors import TOO_LONG, RequestError
from rljob_trainer.gateway.growing import GrowingAnswer
from rljob_trainer.gateway.parsing import Parsers
from rljob_trainer.gateway.pieces import Piece
from rljob_trainer.gateway.record import Opening, Record, Settings
from rljob_trainer.gateway.rendering import Rendering
from rljob_trainer.gateway.requests import ChatRequest, Message, assistant_message
from rljob_trainer.gateway.tree import Tree, Turn, following, keys
from rljob_trainer.generator import RolloutTimeoutError

log = logging.getLogger(__name__)

MOST_IN_FLIGHT = 512
"""requests of a gateway to engines; further ones wait"""
MOST_SESSIONS = 4096
"""open at once"""
KEY_BYTES = 16
UNKNOWN = "there is no such session, or its key is another one"
FORBIDDEN = 401
BUSY = 503


class Tokenizer(texts.Tokenizer, Protocol):
    """What is needed of a tokenizer here."""

    @property
    def all_special_ids(self) -> list[int]:
        """Tokens that are not text."""


class Answers(Protocol):
    """The engines: `conversations.generator.Engines`, or a fake of tests."""

    def begin(self) -> None:
        """Restart the timer after a pause without requests."""

    async def answer(self, request: TokenRequest) -> Continuation:
        """Return one continuation. Raises EngineRefusedError and RolloutTimeoutError."""

    def stream(self, request: TokenRequest) -> AsyncGenerator[Continuation, None]:
        """Yield one continuation in parts; all but the last have an empty `finish_reason`. Raises as `answer`."""


@dataclass
class Session:
    """One trajectory of an agent."""

    name: str
    key: str
    opening: Opening
    engines: Answers
    ends: float
    """when it is forgotten, on the gateway's clock [s]"""
    tree: Tree = field(default_factory=Tree)
    begun: int = 0
    """answers that were asked for"""
    written: int = 0
    """tokens of all answers"""
    over: str | None = None
    away: str | None = None
    refused: int = 0
    first_refusal: str = ""
    stored: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    """histories that end with an answer, by the name under which a request may continue it"""

    @property
    def record(self) -> Record:
        """What it was."""
        return Record(tuple(self.tree.turns), self.over, self.away, self.refused, self.first_refusal)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the engines get it."""

    parent: int | None
    """the turn that it continues"""
    given: tuple[int, ...]
    """what follows that turn, or the whole prompt"""
    text: str
    """the same as people read it"""
    key: str
    """of the history"""
    tokens: TokenRequest


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of one of the answers of a stream."""

    index: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Growth:
    """Where the pieces of an answer go."""

    index: int
    answer: GrowingAnswer
    come: "asyncio.Queue[Part | None]"


class Gateway:
    """All sessions of a process. Belongs to one asyncio loop."""

    def __init__(
        self,
        settings: Settings,
        tokenizer: Tokenizer,
        engines: Callable[[str], Answers],
        parsers: Parsers,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        gate: Gate | None = None,
    ) -> None:
        """`engines` returns those behind a router, by its URL; their requests pass `gate`."""
        self.settings = settings
        self._tokenizer = tokenizer
        self._rendering = Rendering(tokenizer)
        self._engines = engines
        self._parsers = parsers
        self._clock, self._unix_time = clock, unix_time
        self._gate = gate or Gate()
        self._sessions: dict[str, Session] = {}
        self._room = asyncio.Semaphore(MOST_IN_FLIGHT)
        self._markers = frozenset(tokenizer.all_special_ids)

    @property
    def num_sessions(self) -> int:
        """How many are open."""
        return len(self._sessions)

    async def admit(self, admits: bool, wait_s: float) -> bool:
        """Let requests pass to the engines, or hold them here; return whether none is there after `wait_s` [s]."""
        if admits:
            await self._gate.open()
            for session in self._sessions.values():
                session.engines.begin()
        else:
            await self._gate.close()
        return await self._gate.emptied(wait_s)

    def open(self, opening: Opening) -> Session:
        """Begin a session. Raises RequestError if there are too many."""
        self._forget()
        if len(self._sessions) >= MOST_SESSIONS:
            raise RequestError(f"{MOST_SESSIONS} sessions are open", status=BUSY)
        engines = self._engines(opening.router)
        engines.begin()
        name, key = secrets.token_hex(KEY_BYTES), secrets.token_hex(KEY_BYTES)
        session = Session(name, key, opening, engines, self._clock() + self.settings.lifetime_s)
        self._sessions[name] = session
        return session

    def close(self, name: str) -> Record:
        """End a session, and return what it was. Raises RequestError."""
        session = self._sessions.pop(name, None)
        if session is None:
            raise RequestError(UNKNOWN, status=404)
        return session.record

    def session(self, name: str, key: str) -> Session:
        """Return an open session; raise RequestError for another key, or none."""
        session = self._sessions.get(name)
        if not hmac.compare_digest((session.key if session else "").encode(), key.encode()) or session is None:
            raise RequestError(UNKNOWN, status=FORBIDDEN, code="invalid_api_key")
        return session

    async def complete(self, session: Session, request: ChatRequest) -> Completion:
        """Return the answers to a request. Raises RequestError."""
        with _noted(session):
            asked = await self._asked(session, request)
            said = await self._said(session, asked.tokens, request.choices)
            choices = []
            for each in said:
                turn = await self._turn(session, asked, asked.parent, each)
                choices.append(self._choice(turn, request))
                self._add(session, turn, following(asked.key, _message(choices[-1])))
        return replace(self._begun(asked), choices=tuple(choices))

    async def stream(self, session: Session, request: ChatRequest) -> AsyncGenerator[Completion | Part, None]:
        """Yield a completion without answers, the pieces of the answers as they come, and the whole completion.

        Closed before its end, it keeps the tokens that the engines have made so far as turns that were cut off; with
        `settings.whole`, engines end their answers first. Raises RequestError.
        """
        with _noted(session):
            asked = await self._asked(session, request)
            begun = self._begun(asked)
            answers = [self._growing(asked, request) for _ in range(request.choices)]
            come: asyncio.Queue[Part | None] = asyncio.Queue()
            under_way = [
                asyncio.ensure_future(self._grow(session, asked.tokens, Growth(index, answer, come)))
                for index, answer in enumerate(answers)
            ]
            for task in under_way:
                task.add_done_callback(lambda _: come.put_nowait(None))
            try:
                yield begun
                left = len(answers)
                while left:
                    part = await come.get()
                    if part is None:
                        left -= 1
                    else:
                        yield part
                await asyncio.gather(*under_way)
            finally:
                if self.settings.whole:
                    await asyncio.gather(*under_way, return_exceptions=True)
                for task in under_way:
                    task.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)
                for answer in answers:
                    await self._keep(session, asked, answer)
            yield replace(begun, choices=tuple(answer.choice(request.logprobs) for answer in answers))

    async def _asked(self, session: Session, request: ChatRequest) -> Asked:
        self._begin(session, request.choices)
        history = keys(request.messages, request.tools)
        parent, covered = session.tree.known(history)
        before = session.tree.tokens(parent)
        given = await asyncio.to_thread(self._given, request, before, covered)
        tokens = self._token_request(session, request, (*before, *given))
        text = await asyncio.to_thread(texts.decoded, self._tokenizer, given)
        return Asked(parent, given, text, history[-1], tokens)

    def _begun(self, asked: Asked) -> Completion:
        name = f"chatcmpl-{secrets.token_hex(12)}"
        return Completion(name, int(self._unix_time()), "model", len(asked.tokens.tokens_T), ())

    def _growing(self, asked: Asked, request: ChatRequest) -> GrowingAnswer:
        return GrowingAnswer(self._tokenizer.decode, self._markers, self._parsers, request.tools, asked.tokens)

    async def _grow(self, session: Session, asked: TokenRequest, growth: Growth) -> None:
        answer, come = growth.answer, growth.come
        try:
            async with self._room, aclosing(_parts(session.engines, asked)) as parts:
                async for part in parts:
                    for piece in answer.add(part):
                        come.put_nowait(Part(growth.index, piece))
            for piece in answer.end():
                come.put_nowait(Part(growth.index, piece))
        except (EngineRefusedError, RolloutTimeoutError) as error:
            raise _refusal(session, error) from error

    async def _keep(self, session: Session, asked: Asked, answer: GrowingAnswer) -> None:
        """Add the turns of an answer to the tree: one for each version of the weights."""
        if not answer.is_over:
            answer.cut()
        key = following(asked.key, _message(answer.choice(wants_logprobs=False)))
        parent = asked.parent
        for number, made in enumerate(answer.made()):
            turn = await self._turn(session, asked if number == 0 else replace(asked, given=(), text=""), parent, made)
            self._add(session, turn, key)
            parent = turn.number

    def _add(self, session: Session, turn: Turn, key: str) -> None:
        session.tree.add(turn, key)
        session.written += len(turn.tokens_T)

    def _begin(self, session: Session, answers: int) -> None:
        if session.begun + answers > self.settings.turns:
            session.over = session.over or "turns"
            raise RequestError(f"the session has had {session.begun} answers, and may have {self.settings.turns}")
        session.begun += answers

    def _given(self, request: ChatRequest, before: Sequence[int], covered: int) -> tuple[int, ...]:
        if not before:
            return self._rendering.prompt(request.messages, request.tools)
        return self._rendering.following(request.messages[covered:], request.tools, before[-1])

    def _token_request(self, session: Session, request: ChatRequest, tokens_T: tuple[int, ...]) -> TokenRequest:
        settings, opening = self.settings, session.opening
        fits, left = new_tokens(settings.context, len(tokens_T)), settings.new_tokens - session.written
        if fits < 1 or left < 1:
            session.over = session.over or ("context" if fits < 1 else "tokens")
            raise RequestError(
                f"the model cannot write behind {len(tokens_T)} tokens: its context has {settings.context}, and"
                f" {max(0, left)} of {settings.new_tokens} tokens are left to the session",
                "messages",
                TOO_LONG,
            )
        return TokenRequest(
            tokens_T=tokens_T,
            num_samples=1,
            temperature=opening.temperature,
            top_p=opening.top_p,
            top_k=opening.top_k,
            max_new_tokens=min(fits, left, request.max_tokens or fits),
            stop=(*opening.stop, *request.stop),
            stop_token_ids=opening.stop_token_ids,
            json_schema=request.json_schema,
        )

    async def _said(self, session: Session, asked: TokenRequest, answers: int) -> Sequence[Continuation]:
        async def one() -> Continuation:
            async with self._room:
                return await session.engines.answer(asked)

        under_way = [asyncio.ensure_future(one()) for _ in range(answers)]
        try:
            return await asyncio.gather(*under_way)
        except (EngineRefusedError, RolloutTimeoutError) as error:
            raise _refusal(session, error) from error
        finally:
            for task in under_way:
                task.cancel()

    async def _turn(self, session: Session, asked: Asked, parent: int | None, said: Continuation) -> Turn:
        marked = await asyncio.to_thread(texts.decoded, self._tokenizer, said.tokens_T)
        return Turn(
            number=len(session.tree.turns),
            parent=parent,
            given_T=asked.given,
            given=asked.text,
            tokens_T=said.tokens_T,
            logprobs_T=said.logprobs_T,
            said=marked,
            text=self._text(said, asked.tokens),
            version=said.version,
            engine=said.engine,
            finish_reason=said.finish_reason,
            trained=asked.tokens.json_schema is None,
            carried=said.carried,
            experts=said.experts,
        )

    def _text(self, said: Continuation, asked: TokenRequest) -> str:
        """Return an answer without what ended it; with its markers, if a parser looks for them."""
        if not self._parsers.need_markers:
            return said.text
        ends = self._markers.union(asked.stop_token_ids) if said.finish_reason == "stop" else frozenset()
        tokens = said.tokens_T[:-1] if said.tokens_T[-1:] and said.tokens_T[-1] in ends else said.tokens_T
        text = self._tokenizer.decode(list(tokens))
        return text[: min((text.index(each) for each in asked.stop if each in text), default=len(text))]

    def _choice(self, turn: Turn, request: ChatRequest) -> Choice:
        parsed = self._parsers.parsed(turn.text, request.tools)
        ids = tuple(f"call_{secrets.token_hex(12)}" for _ in parsed.calls)
        tokens = tuple(self._tokenizer.decode([token]) for token in turn.tokens_T) if request.logprobs else ()
        return Choice(parsed, ids, turn.finish_reason, turn.logprobs_T, tokens)

    def _forget(self) -> None:
        """Drop sessions that were not closed in their time."""
        now = self._clock()
        for name in [name for name, session in self._sessions.items() if session.ends < now]:
            log.warning("action=forget session=%s", name)
            del self._sessions[name]


@contextmanager
def _noted(session: Session) -> Any:
    """Count what is refused."""
    try:
        yield
    except RequestError as error:
        session.refused += 1
        session.first_refusal = session.first_refusal or error.message
        raise


async def _parts(engines: Answers, asked: TokenRequest) -> AsyncGenerator[Continuation, None]:
    """Yield a continuation in parts; one that is forced into a format is one part, as no other engine can go on."""
    if asked.json_schema is not None:
        yield await engines.answer(asked)
        return
    async with aclosing(engines.stream(asked)) as parts:
        async for part in parts:
            yield part


def _refusal(session: Session, error: Exception) -> RequestError:
    """Return what a client is told of an error of the engines; the session notes that they were away."""
    if isinstance(error, EngineRefusedError):
        return RequestError(f"the engine refuses the request: {error}")
    session.away = str(error)
    return RequestError(str(error), status=BUSY)


def _message(choice: Choice) -> Mapping[str, Any]:
    return assistant_message(choice.parsed.content, choice.calls)
