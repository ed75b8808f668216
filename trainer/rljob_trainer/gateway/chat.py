"""Answers requests of sessions: what is known of a history stays as it was sampled, the rest is rendered and asked.

Requests wait here while the engines are full, and while an engine is away: an agent sees no error of theirs before
`patience_s`.

    turns of all answers ─► the tree and the session's file, at once ─► the client

A gateway that comes after one that was killed reads the files: a client that asks again for what was answered, but may
not have reached it, gets the same answer.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, TypeVar

from rljob_api.sizing.token_limits import new_tokens
from rljob_trainer.conversations import turns as texts
from rljob_trainer.engines.client import Continuation, EngineRefusedError, TokenRequest
from rljob_trainer.engines.gate import Gate
from rljob_trainer.gateway.answers import Choice, Completion
from rljob_trainer.gateway.errors import TOO_LONG, RequestError
from rljob_trainer.gateway.growing import GrowingAnswer
from rljob_trainer.gateway.parsing import Parsers
from rljob_trainer.gateway.pieces import Piece, pieces
from rljob_trainer.gateway.record import Opening, Record, Settings
from rljob_trainer.gateway.rendering import Rendering
from rljob_trainer.gateway.requests import ChatRequest, assistant_message
from rljob_trainer.gateway.session_files import Answered, Condition, History, Reply, SessionFile, SessionFiles
from rljob_trainer.gateway.tree import Tree, Turn, demand, following, keys
from rljob_trainer.generator import RolloutTimeoutError

log = logging.getLogger(__name__)
Made = TypeVar("Made")

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
    file: SessionFile
    tree: Tree = field(default_factory=Tree)
    begun: int = 0
    """answers that were asked for"""
    written: int = 0
    """tokens of all answers"""
    over: str | None = None
    away: str | None = None
    refused: int = 0
    first_refusal: str = ""
    cut_off: int = 0
    """requests that were under way when a gateway was killed"""
    stored: dict[str, History] = field(default_factory=dict)
    """histories that end with an answer, by the name under which a request may continue it"""
    leaving: dict[str, Reply] = field(default_factory=dict)
    """by the name of the request: what its client does not have yet"""
    waiting: list[Reply] = field(default_factory=list)
    """what clients did not get, and may ask again for"""

    @property
    def record(self) -> Record:
        """What it was."""
        return Record(tuple(self.tree.turns), **asdict(self.condition))

    @property
    def condition(self) -> Condition:
        """What it has met."""
        return Condition(self.over, self.away, self.refused, self.first_refusal, self.cut_off)

    def store(self, name: str, previous: str | None, history: History) -> None:
        """Note a history, which begins with that of `previous`, under a name."""
        known = len(self.stored[previous]) if previous is not None else 0
        self.stored[name] = history
        self.file.stored(name, previous, history[known:])

    def left(self, name: str) -> None:
        """Note that the client has the reply to a request of this name."""
        if self.leaving.pop(name, None) is not None:
            self.file.left(name)

    def held_back(self, name: str) -> None:
        """Note that the reply to a request could not be sent: the next request that asks the same gets it."""
        if (reply := self.leaving.pop(name, None)) is not None:
            self.waiting.append(reply)

    def claimed(self, wanted: str) -> Reply | None:
        """Take a reply that waits for a request that asks this; None: there is none."""
        found = next((each for each in self.waiting if each.demand == wanted), None)
        if found is not None:
            self.waiting.remove(found)
            self.leaving[found.name] = found
        return found


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
    demand: str
    """what is asked"""
    tokens: TokenRequest
    began: tuple[float, float] = (0.0, 0.0)
    """when the request came: unix time, and on the gateway's clock [s]"""

    def continued(self) -> "Asked":
        """Return the same for what follows the first part of its answer."""
        return replace(self, given=(), text="")


@dataclass(frozen=True, slots=True)
class Said:
    """What the model has said to a request, before it is in the tree."""

    key: str
    """of the history that ends with it"""
    parts: tuple[tuple[Continuation, str], ...]
    """of each version of the weights, and as people read it"""
    calls: tuple[str, ...] = ()
    """names of the functions that it calls"""


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
        files: SessionFiles,
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
        self._files = files
        self._clock, self._unix_time = clock, unix_time
        self._gate = gate or Gate()
        self._sessions: dict[str, Session] = {}
        self._room = asyncio.Semaphore(MOST_IN_FLIGHT)
        self._markers = frozenset(tokenizer.all_special_ids)
        self._texts = ThreadPoolExecutor(1, thread_name_prefix="texts")

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
        file = self._files.new(name)
        session = Session(name, key, opening, engines, self._clock() + self.settings.lifetime_s, file)
        file.opened(key, opening)
        self._sessions[name] = session
        return session

    def restore(self) -> None:
        """Open the sessions that the files have."""
        for name, kept, file in self._files.read():
            engines = self._engines(kept.opening.router)
            engines.begin()
            session = Session(name, kept.key, kept.opening, engines, self._clock() + self.settings.lifetime_s, file)
            session.stored = kept.stored
            session.waiting = list(kept.waiting.values())
            session.begun = len(kept.answers)
            for each in kept.answers:
                for turn in each.turns:
                    self._add(session, turn, each.key)
            met, cut_off = kept.condition, len(kept.under_way)
            session.over, session.away, session.cut_off = met.over, met.away, met.cut_off + cut_off
            session.refused, session.first_refusal = met.refused, met.first_refusal
            file.ended(tuple(kept.under_way), session.condition)
            log.info("action=restore session=%s turns=%d cut_off=%d", name, len(session.tree.turns), cut_off)
            self._sessions[name] = session

    def record(self, name: str) -> Record:
        """Return what a session is so far. Raises RequestError."""
        if name not in self._sessions:
            raise RequestError(UNKNOWN, status=404)
        return self._sessions[name].record

    def close(self, name: str) -> Record:
        """End a session, and return what it was. Raises RequestError."""
        record = self.record(name)
        self._sessions.pop(name).file.remove()
        return record

    def session(self, name: str, key: str) -> Session:
        """Return an open session; raise RequestError for another key, or none."""
        session = self._sessions.get(name)
        if not hmac.compare_digest((session.key if session else "").encode(), key.encode()) or session is None:
            raise RequestError(UNKNOWN, status=FORBIDDEN, code="invalid_api_key")
        return session

    async def complete(self, session: Session, request: ChatRequest) -> Completion:
        """Return the answers to a request; `Session.left` notes that its client has them. Raises RequestError."""
        history = keys(request.messages, request.tools)
        if (reply := session.claimed(_demand(history, request))) is not None:
            return self._repeated(session, request, history, reply)
        name = _new_name()
        with _noted(session, name):
            asked = await self._asked(session, request, history)
            answers, choices = [], []
            for each in await self._said(session, asked.tokens, request.choices):
                choice = self._choice(each, request, asked.tokens)
                key = following(asked.key, _message(choice))
                said = ((each, await self._decoded(each.tokens_T)),)
                answers.append(Said(key, said, _names(choice)))
                choices.append(choice)
            self._commit(session, asked, answers, name, is_awaited=True)
        return replace(self._begun(name, len(asked.tokens.tokens_T)), choices=tuple(choices))

    async def stream(self, session: Session, request: ChatRequest) -> AsyncGenerator[Completion | Part, None]:
        """Yield a completion without answers, the pieces of the answers as they come, and the whole completion.

        Closed before its end, it keeps the tokens that the engines have made so far as turns that were cut off; with
        `settings.whole`, engines end their answers first. Raises RequestError.
        """
        history = keys(request.messages, request.tools)
        if (reply := session.claimed(_demand(history, request))) is not None:
            whole = self._repeated(session, request, history, reply)
            yield replace(whole, choices=())
            for index, choice in enumerate(whole.choices):
                for piece in pieces(choice):
                    yield Part(index, piece)
            yield whole
            return
        name = _new_name()
        with _noted(session, name):
            asked = await self._asked(session, request, history)
            begun = self._begun(name, len(asked.tokens.tokens_T))
            answers = [self._growing(asked.tokens, request) for _ in range(request.choices)]
            come: asyncio.Queue[Part | None] = asyncio.Queue()
            under_way = [
                asyncio.ensure_future(self._grow(session, asked.tokens, Growth(index, answer, come)))
                for index, answer in enumerate(answers)
            ]
            for task in under_way:
                task.add_done_callback(lambda _: come.put_nowait(None))
            is_whole = False
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
                is_whole = True
            finally:
                if self.settings.whole:
                    await asyncio.gather(*under_way, return_exceptions=True)
                for task in under_way:
                    task.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)
                said = [await self._grown(asked, answer) for answer in answers]
                self._commit(session, asked, said, name, is_awaited=is_whole)
        yield replace(begun, choices=tuple(answer.choice(request.logprobs) for answer in answers))

    async def _asked(self, session: Session, request: ChatRequest, history: Sequence[str]) -> Asked:
        self._begin(session, request.choices)
        began = (self._unix_time(), self._clock())
        parent, covered = session.tree.known(history)
        before = session.tree.tokens(parent)
        given, text = await self._apart(self._given, request, before, covered)
        tokens = self._token_request(session, request, (*before, *given))
        return Asked(parent, given, text, history[-1], _demand(history, request), tokens, began)

    def _begun(self, name: str, prompt_tokens: int) -> Completion:
        return Completion(name, int(self._unix_time()), "model", prompt_tokens, ())

    def _repeated(self, session: Session, request: ChatRequest, history: Sequence[str], reply: Reply) -> Completion:
        """Return a reply again: its turns are in the tree."""
        choices = []
        for answered in reply.answers:
            answer = self._growing(_token_request(session.opening, request, (), 0), request)
            for turn in answered.turns:
                reason = turn.finish_reason if turn is answered.turns[-1] else ""
                made = (turn.tokens_T, turn.logprobs_T, turn.text, turn.version, turn.engine, reason)
                list(answer.add(Continuation(*made, cached=turn.cached)))
            list(answer.end())
            choices.append(answer.choice(request.logprobs))
            session.tree.name(answered.turns[-1].number, following(history[-1], _message(choices[-1])))
        first = reply.answers[0].turns[0]
        prompt_tokens = len(session.tree.tokens(first.parent)) + len(first.given_T)
        log.info("action=repeat session=%s request=%s", session.name, reply.name)
        return replace(self._begun(reply.name, prompt_tokens), choices=tuple(choices))

    def _growing(self, asked: TokenRequest, request: ChatRequest) -> GrowingAnswer:
        return GrowingAnswer(self._tokenizer.decode, self._markers, self._parsers, request.tools, asked)

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

    async def _grown(self, asked: Asked, answer: GrowingAnswer) -> Said:
        """Return what an answer has become: a part for each version of the weights."""
        if not answer.is_over:
            answer.cut()
        choice = answer.choice(wants_logprobs=False)
        parts = tuple([(made, await self._decoded(made.tokens_T)) for made in answer.made()])
        return Said(following(asked.key, _message(choice)), parts, _names(choice))

    def _commit(self, session: Session, asked: Asked, answers: Sequence[Said], name: str, is_awaited: bool) -> None:
        """Add the turns of all answers to the tree and to the file: all of them, or none."""
        made = []
        number, seconds = len(session.tree.turns), self._clock() - asked.began[1]
        for said in answers:
            turns: list[Turn] = []
            for part, text in said.parts:
                parent = turns[-1].number if turns else asked.parent
                turn = self._turn(number, asked if not turns else asked.continued(), parent, part, text)
                turns.append(replace(turn, calls=() if turns else said.calls, began=asked.began[0], seconds=seconds))
                number += 1
            made.append(Answered(said.key, tuple(turns)))
        reply = Reply(name, asked.demand, tuple(made))
        session.file.answered(reply, is_awaited)
        for answered in made:
            for turn in answered.turns:
                self._add(session, turn, answered.key)
        if is_awaited:
            session.leaving[name] = reply

    def _add(self, session: Session, turn: Turn, key: str) -> None:
        session.tree.add(turn, key)
        session.written += len(turn.tokens_T)

    def _begin(self, session: Session, answers: int) -> None:
        if session.begun + answers > self.settings.turns:
            session.over = session.over or "turns"
            raise RequestError(f"the session has had {session.begun} answers, and may have {self.settings.turns}")
        session.begun += answers

    def _given(self, request: ChatRequest, before: Sequence[int], covered: int) -> tuple[tuple[int, ...], str]:
        """Return what a request adds to the tokens before it, and the same as people read it."""
        if not before:
            given = self._rendering.prompt(request.messages, request.tools)
        else:
            given = self._rendering.following(request.messages[covered:], request.tools, before[-1])
        return given, texts.decoded(self._tokenizer, given)

    def _token_request(self, session: Session, request: ChatRequest, tokens_T: tuple[int, ...]) -> TokenRequest:
        settings = self.settings
        fits, left = new_tokens(settings.context, len(tokens_T)), settings.new_tokens - session.written
        if fits < 1 or left < 1:
            session.over = session.over or ("context" if fits < 1 else "tokens")
            raise RequestError(
                f"the model cannot write behind {len(tokens_T)} tokens: its context has {settings.context}, and"
                f" {max(0, left)} of {settings.new_tokens} tokens are left to the session",
                "messages",
                TOO_LONG,
            )
        most = min(fits, left, request.max_tokens or fits)
        return replace(_token_request(session.opening, request, tokens_T, most), session=session.name)

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

    def _turn(self, number: int, asked: Asked, parent: int | None, said: Continuation, marked: str) -> Turn:
        return Turn(
            number=number,
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
            cached=said.cached,
        )

    async def _decoded(self, tokens_T: Sequence[int]) -> str:
        return await self._apart(texts.decoded, self._tokenizer, tokens_T)

    async def _apart(self, work: Callable[..., Made], *arguments: Any) -> Made:
        """Do work with texts beside the loop. One thread: all such work goes through one process, with a lock."""
        return await asyncio.get_running_loop().run_in_executor(self._texts, work, *arguments)

    def _text(self, said: Continuation, asked: TokenRequest) -> str:
        """Return an answer without what ended it; with its markers, if a parser looks for them."""
        if not self._parsers.need_markers:
            return said.text
        ends = self._markers.union(asked.stop_token_ids) if said.finish_reason == "stop" else frozenset()
        tokens = said.tokens_T[:-1] if said.tokens_T[-1:] and said.tokens_T[-1] in ends else said.tokens_T
        text = self._tokenizer.decode(list(tokens))
        return text[: min((text.index(each) for each in asked.stop if each in text), default=len(text))]

    def _choice(self, said: Continuation, request: ChatRequest, asked: TokenRequest) -> Choice:
        parsed = self._parsers.parsed(self._text(said, asked), request.tools)
        ids = tuple(f"call_{secrets.token_hex(12)}" for _ in parsed.calls)
        tokens = tuple(self._tokenizer.decode([token]) for token in said.tokens_T) if request.logprobs else ()
        return Choice(parsed, ids, said.finish_reason, said.logprobs_T, tokens, said.cached)

    def _forget(self) -> None:
        """Drop sessions that were not closed in their time."""
        now = self._clock()
        for name in [name for name, session in self._sessions.items() if session.ends < now]:
            log.warning("action=forget session=%s", name)
            self._sessions.pop(name).file.remove()


@contextmanager
def _noted(session: Session, name: str) -> Iterator[None]:
    """Note a request from its beginning to its end, and count what is refused."""
    session.file.asked(name)
    try:
        yield
    except RequestError as error:
        session.refused += 1
        session.first_refusal = session.first_refusal or error.message
        raise
    finally:
        session.file.ended((name,), session.condition)


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


def _names(choice: Choice) -> tuple[str, ...]:
    return tuple(call.name for call in choice.parsed.calls)


def _new_name() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"


def _token_request(opening: Opening, request: ChatRequest, tokens_T: tuple[int, ...], most: int) -> TokenRequest:
    return TokenRequest(
        tokens_T=tokens_T,
        num_samples=1,
        temperature=opening.temperature,
        top_p=opening.top_p,
        top_k=opening.top_k,
        max_new_tokens=most,
        stop=(*opening.stop, *request.stop),
        stop_token_ids=opening.stop_token_ids,
        json_schema=request.json_schema,
    )


def _demand(history: Sequence[str], request: ChatRequest) -> str:
    """Return what is asked: the history, and the fields that change the answer."""
    wanted = (request.choices, request.max_tokens, request.stop, request.json_schema, request.stream)
    return demand(history[-1], wanted)
