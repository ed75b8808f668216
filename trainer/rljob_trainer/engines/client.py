"""What one SGLang server, and the router, can be asked over HTTP; typed, and every question with a deadline.

Trouble becomes an `EngineError` here, once: which engine, what was wanted, what was seen. An engine's weights carry the
label `VERSION@ENGINE`, which SGLang repeats in every answer: so a sample knows its version and its engine.
"""

import asyncio
import base64
import json
import math
import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import aiohttp
import numpy as np
import numpy.typing as npt
import orjson

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.engines.key import with_key

Json = dict[str, Any]
PauseMode = Literal["abort", "retract", "in_place"]
UNLABELLED = -1
ROUTER_DEADLINE_S = 10.0
ROUTING_KEY = "X-SMG-Routing-Key"
"""sglang-router's header"""
REFUSALS = frozenset({400, 413, 422})
ABORTED = re.compile(r"Request \S+ was aborted")
"""what SGLang 0.5.17 says, as 400, of a request that `abort_all` met before its first token"""
MOST_EVENT_BYTES = 256 << 20
"""of one event of a stream: its last one has the experts of all tokens"""
KEEP_ALIVE_S = 2.0
"""shorter than the servers' 5 s: a POST on a connection that the server is closing would fail and not be repeated"""


class EngineError(RunError, RuntimeError):
    """An engine did not do what it was asked."""

    exit = Exit.LOST_PEER


class EngineUnreachableError(EngineError):
    """No answer: connection refused or lost, or the deadline has passed."""


class EngineRefusedError(EngineError):
    """The request itself is wrong: asking again, or another engine, will not help."""

    exit = Exit.BAD_INPUT
    proven_by_steps = True


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What to continue, and how."""

    tokens_T: tuple[int, ...]
    num_samples: int
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    json_schema: str | None = None
    """that the continuation must follow; None: it is free"""
    session: str = ""
    """name of the session that it belongs to: a router that keeps sessions sends all of one to the same engine"""

    @property
    def headers(self) -> Mapping[str, str]:
        """What the router reads of it."""
        return {ROUTING_KEY: self.session} if self.session else {}

    def body(self) -> Json:
        """Return SGLang's form of it."""
        forced = {} if self.json_schema is None else {"json_schema": self.json_schema}
        return {
            "input_ids": list(self.tokens_T),
            "return_logprob": True,
            "sampling_params": {
                "n": self.num_samples,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "max_new_tokens": self.max_new_tokens,
                "stop": list(self.stop),
                "stop_token_ids": list(self.stop_token_ids),
                **forced,
            },
        }


@dataclass(frozen=True, slots=True)
class Continuation:
    """One answer."""

    tokens_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    """at the sampling temperature [nats]"""
    text: str
    version: int
    """of the weights that made it; UNLABELLED before the first publication"""
    engine: str
    finish_reason: str
    """`stop`, `length`, `abort`"""
    carried: tuple[tuple[int, int], ...] = ()
    """(version, tokens) of its parts, where it was carried over publications; empty: `version` made all of it"""
    experts: npt.NDArray[np.int16] | None = field(default=None, compare=False)
    """experts of each layer for all tokens but the last, the request's first: [T x L x K]; None: the engine does not
    say"""
    cached: int = 0
    """tokens of the prompt that the engine had from earlier requests"""


class Generates(Protocol):
    """Answers requests: the router, or what stands before it."""

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        """Return `request.num_samples` continuations. Raises EngineError."""


class Streams(Generates, Protocol):
    """Answers in parts, too."""

    def stream(self, request: TokenRequest, deadline_s: float) -> AsyncGenerator[Continuation, None]:
        """Yield one continuation in parts; all but the last have an empty `finish_reason`. Raises EngineError."""


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where the members of a weight group meet."""

    master_address: str
    master_port: int
    rank_offset: int
    """rank of this engine's first process; the learner is rank 0"""
    world_size: int
    group_name: str
    backend: Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine as the router lists it."""

    id: str
    url: str
    healthy: bool


@dataclass(frozen=True, slots=True)
class _Http:
    """Asks one server; `who` names it in errors."""

    session: aiohttp.ClientSession
    who: str
    url: str
    key: str = field(repr=False)

    async def ask(
        self,
        method: str,
        path: str,
        deadline_s: float,
        body: Json | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the answer, parsed when it is JSON; `more` are headers. Raises EngineError."""
        wanted = f"{self.who}: {method} {path}"
        timeout, url = aiohttp.ClientTimeout(total=deadline_s), self.url + path
        headers = {**with_key(self.key), **(more or {})}
        try:
            async with self.session.request(method, url, json=body, headers=headers, timeout=timeout) as answer:
                is_json = answer.content_type == "application/json"
                content = await (answer.json(loads=orjson.loads) if is_json else answer.text())
        except TimeoutError as error:
            raise EngineUnreachableError(f"{wanted}: no answer within {deadline_s:g} s") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineUnreachableError(f"{wanted}: {type(error).__name__}: {error}") from error
        if answer.status >= 400:
            raise _refusal(wanted, answer.status, content)
        return content

    async def events(
        self, path: str, deadline_s: float, body: Json, more: Mapping[str, str]
    ) -> AsyncGenerator[Any, None]:
        """Yield the events of an answer, parsed; `more` are headers.

        Raises EngineError, also where it ends before its last event.
        """
        wanted = f"{self.who}: POST {path}"
        timeout, url = aiohttp.ClientTimeout(total=deadline_s), self.url + path
        headers = {**with_key(self.key), **more}
        try:
            async with self.session.post(url, json=body, headers=headers, timeout=timeout) as answer:
                if answer.status >= 400:
                    is_json = answer.content_type == "application/json"
                    content = await (answer.json(loads=orjson.loads) if is_json else answer.text())
                    raise _refusal(wanted, answer.status, content)
                if answer.content_type == "application/json":  # a proxy between us does not stream
                    yield await answer.json(loads=orjson.loads)
                    return
                waiting = b""
                async for chunk in answer.content.iter_any():
                    *events, waiting = (waiting + chunk).split(b"\n\n")
                    if len(waiting) > MOST_EVENT_BYTES:
                        raise EngineError(f"{wanted}: an event of more than {MOST_EVENT_BYTES} bytes")
                    for event in events:
                        data = event.removeprefix(b"data: ")
                        if data == b"[DONE]":
                            return
                        content = orjson.loads(data)
                        if "error" in content:
                            raise _refusal(wanted, int(content["error"].get("code") or 500), content)
                        yield content
        except TimeoutError as error:
            raise EngineUnreachableError(f"{wanted}: not complete within {deadline_s:g} s") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineUnreachableError(f"{wanted}: {type(error).__name__}: {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise EngineError(f"{wanted}: an event that is not SGLang's: {error}") from error
        raise EngineUnreachableError(f"{wanted}: the stream ended before its last event")


@dataclass(frozen=True, slots=True)
class EngineClient:
    """One engine, asked directly."""

    session: aiohttp.ClientSession
    name: str
    url: str
    key: str = field(default="", repr=False)
    """that the engine demands"""

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        """Return `request.num_samples` continuations."""
        return continuations(await self._post("/generate", deadline_s, request.body()), self.name)

    async def probe(self, deadline_s: float) -> None:
        """Return when both the server and its scheduler have answered; raise EngineError."""
        await self._http.ask("GET", "/server_info", deadline_s)

    async def num_requests(self, deadline_s: float) -> int:
        """Return how many requests run or wait; the scheduler updates it when one begins and when none is left."""
        content = await self._http.ask("GET", "/v1/loads?include=core", deadline_s)
        return sum(rank["num_running_reqs"] + rank["num_waiting_reqs"] for rank in content["loads"])

    async def pause(self, mode: PauseMode, deadline_s: float) -> None:
        """Stop generating; `abort` returns running requests as they are, the others keep them."""
        await self._post("/pause_generation", deadline_s, {"mode": mode})

    async def resume(self, deadline_s: float) -> None:
        """Generate again."""
        await self._post("/continue_generation", deadline_s, {"torch_empty_cache": False})

    async def abort_all(self, deadline_s: float) -> None:
        """End every running request; each is answered with what it has."""
        await self._post("/abort_request", deadline_s, {"abort_all": True})

    async def join_group(self, address: GroupAddress, deadline_s: float) -> None:
        """Join a weight group; answers when all members have."""
        body = {
            "master_address": address.master_address,
            "master_port": address.master_port,
            "rank_offset": address.rank_offset,
            "world_size": address.world_size,
            "group_name": address.group_name,
            "backend": address.backend,
        }
        await self._post("/init_weights_update_group", deadline_s, body)

    async def leave_group(self, group_name: str, deadline_s: float) -> None:
        """Leave a weight group."""
        await self._post("/destroy_weights_update_group", deadline_s, {"group_name": group_name})

    async def receive(
        self,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        group_name: str,
        flush_cache: bool,
        deadline_s: float,
    ) -> None:
        """Take part in the broadcast of these tensors, in this order; answers when they are loaded.

        `flush_cache` then forgets all cached prefixes, which belong to the weights that made them. (Not by
        /flush_cache: that collects garbage too, which takes 0.4 s on CPU.)
        """
        body = {
            "names": list(names),
            "dtypes": list(dtypes),
            "shapes": [list(shape) for shape in shapes],
            "group_name": group_name,
            "flush_cache": flush_cache,
            "torch_empty_cache": False,
        }
        await self._post("/update_weights_from_distributed", deadline_s, body)

    async def take(self, handles: Sequence[str], flush_cache: bool, deadline_s: float) -> None:
        """Load tensors out of memory of other processes on this machine, by one handle for each rank of the engine.

        The answer comes when that memory is free to be changed. `flush_cache` as in `receive`.
        """
        body = {
            "serialized_named_tensors": list(handles),
            "load_format": "flattened_bucket",
            "flush_cache": flush_cache,
            "torch_empty_cache": False,
        }
        await self._post("/update_weights_from_tensor", deadline_s, body)

    async def read_weights(self, directory: str, deadline_s: float) -> None:
        """Load the Hugging Face weights in a directory that the engine can see, and forget all cached prefixes."""
        # Not in the way in which the engine was started: then it may have had nothing to read.
        body = {"model_path": directory, "load_format": "auto", "flush_cache": True, "torch_empty_cache": False}
        await self._post("/update_weights_from_disk", deadline_s, body)

    async def label_weights(self, version: int, deadline_s: float) -> None:
        """Name the weights: samples carry version and engine from here on."""
        # SGLang would abort all requests by default
        body = {"new_version": f"{version}@{self.name}", "abort_all_requests": False}
        await self._post("/update_weight_version", deadline_s, body)

    async def digests(self, deadline_s: float) -> tuple[Mapping[str, str], ...]:
        """Return, for each rank of the engine, the digest of every tensor that it holds."""
        content = await self._post("/weights_checker", deadline_s, {"action": "checksum"})
        return tuple(rank["checksums"] for rank in content["ranks"])

    async def release_memory(self, parts: Collection[str], deadline_s: float) -> None:
        """Free these parts of its GPU memory (with --enable-memory-saver), as soon as the engine is idle."""
        # Right after its last answer it is not yet, and ends when it is asked then: SGLang asserts it.
        await self._post(f"/flush_cache?timeout={deadline_s:g}", deadline_s, {})
        await self._post("/release_memory_occupation", deadline_s, {"tags": sorted(parts)})

    async def resume_memory(self, parts: Collection[str], deadline_s: float) -> None:
        """Allocate them again; their contents are undefined."""
        await self._post("/resume_memory_occupation", deadline_s, {"tags": sorted(parts)})

    @property
    def _http(self) -> _Http:
        return _Http(self.session, f"engine {self.name}", self.url, self.key)

    async def _post(self, path: str, deadline_s: float, body: Json) -> Any:
        return await self._http.ask("POST", path, deadline_s, body)


@dataclass(frozen=True, slots=True)
class RouterClient:
    """The router in front of the engines."""

    session: aiohttp.ClientSession
    url: str
    key: str = field(default="", repr=False)
    """that the router and its engines demand"""

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        """Return `request.num_samples` continuations by whichever engine the router picks."""
        answer = await self._http.ask("POST", "/generate", deadline_s, request.body(), request.headers)
        return continuations(answer, "router")

    async def stream(self, request: TokenRequest, deadline_s: float) -> AsyncGenerator[Continuation, None]:
        """Yield one continuation in parts as its tokens come; all but the last have an empty `finish_reason`.

        Raises EngineError.
        """
        seen = 0
        body = request.body() | {"stream": True}
        async with aclosing(self._http.events("/generate", deadline_s, body, request.headers)) as events:
            async for content in events:
                part, seen = _part(content, seen)
                yield part
                if part.finish_reason:
                    return
        raise EngineUnreachableError("router: POST /generate: the stream ended without a reason")

    async def is_alive(self) -> bool:
        """Return whether the router answers."""
        try:
            await self._http.ask("GET", "/liveness", ROUTER_DEADLINE_S)
        except EngineUnreachableError:
            return False
        return True

    async def workers(self) -> tuple[Worker, ...]:
        """Return the engines that are listed."""
        content = await self._http.ask("GET", "/workers", ROUTER_DEADLINE_S)
        return tuple(Worker(worker["id"], worker["url"], worker["is_healthy"]) for worker in content["workers"])

    async def add_worker(self, url: str) -> None:
        """Ask for an engine to be listed; the answer comes before it is."""
        key = {"api_key": self.key} if self.key else {}
        await self._http.ask("POST", "/workers", ROUTER_DEADLINE_S, {"url": url, **key})

    async def remove_worker(self, worker_id: str) -> None:
        """Ask for an engine to be taken off the list; the answer comes before it is."""
        await self._http.ask("DELETE", f"/workers/{worker_id}", ROUTER_DEADLINE_S)

    @property
    def _http(self) -> _Http:
        return _Http(self.session, "router", self.url, self.key)


def open_session() -> aiohttp.ClientSession:
    """Return a session for any number of simultaneous requests; open it inside the loop that will use it."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    return aiohttp.ClientSession(connector=connector, json_serialize=_written)


def _written(content: Any) -> str:
    """Return JSON. orjson writes the tokens of a prompt ten times as fast, but not every text."""
    try:
        return orjson.dumps(content).decode()
    except TypeError:  # a text that is not Unicode, a number beyond 64 bits
        return json.dumps(content)


def continuations(content: Any, who: str) -> tuple[Continuation, ...]:
    """Return SGLang's answer to one request as values; one sample comes without a list around it."""
    answers = content if isinstance(content, list) else [content]
    return tuple(_continuation(answer, who) for answer in answers)


def _continuation(answer: Json, who: str) -> Continuation:
    meta = answer["meta_info"]
    logprobs_T, tokens_T = columns(meta["output_token_logprobs"])
    version, _, engine = str(meta["weight_version"]).rpartition("@")
    return Continuation(
        tokens_T=tokens_T,
        logprobs_T=logprobs_T,
        text=answer.get("text", ""),
        version=int(version) if version else UNLABELLED,
        engine=engine if version else who,
        finish_reason=(meta["finish_reason"] or {"type": "abort"})["type"],
        experts=_experts(meta.get("routed_experts")),
        cached=meta.get("cached_tokens") or 0,
    )


def _part(content: Json, seen: int) -> tuple[Continuation, int]:
    """Return what an event adds to `seen` tokens, and how many there are with it.

    An engine sends the new tokens alone, or all so far: an argument of the engine decides it.
    """
    meta = content["meta_info"]
    output, ended = meta["output_token_logprobs"], meta["finish_reason"]
    if ended is not None and ended["type"] == "abort" and ended.get("status_code") in REFUSALS:
        raise _refusal("router: POST /generate", ended["status_code"], ended)
    total = meta.get("output_token_logprobs_length", len(output))
    new = output[max(0, len(output) - (total - seen)) :]
    if len(new) != total - seen:
        raise EngineError(f"router: POST /generate: an event has {len(new)} of {total - seen} new log-probabilities")
    meta = {**meta, "output_token_logprobs": new, "finish_reason": ended or {"type": ""}}
    return _continuation({"meta_info": meta}, "router"), total


def columns(output: Sequence[Sequence[Any]]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return log-probabilities and tokens of SGLang's `[log-probability, token, text]` for each token.

    A rollout has millions of them, so no statement of Python runs for each.
    """
    logprobs_T, tokens_T, *_ = zip(*output, strict=False) if output else ((), ())
    if None in logprobs_T:  # JSON has no NaN
        logprobs_T = tuple(math.nan if logprob is None else logprob for logprob in logprobs_T)
    return logprobs_T, tokens_T


def _experts(routed: str | None) -> npt.NDArray[np.int16] | None:
    """Return SGLang's numbers of experts, int32 in base64, in half the memory: they are most of a sample."""
    return np.frombuffer(base64.b64decode(routed), np.int32).astype(np.int16) if routed else None


def _refusal(wanted: str, status: int, content: Any) -> EngineError:
    message = _message(content)
    refused = status in REFUSALS and not ABORTED.search(message)
    return (EngineRefusedError if refused else EngineError)(f"{wanted}: {status} {message}")


def _message(content: Any) -> str:
    """Return what an error answer says, shortened."""
    if isinstance(content, dict):
        error = content.get("error", content)
        content = error.get("message", error) if isinstance(error, dict) else error
        content = content.get("message", content) if isinstance(content, dict) else content
    return str(content)[:500]


async def each(work: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Await one coroutine for each engine; return the results by name, and the errors' texts by name."""
    done = await asyncio.gather(*work.values(), return_exceptions=True)
    results: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for name, outcome in zip(work, done, strict=True):
        match outcome:
            case EngineError():
                failures[name] = str(outcome)
            case BaseException():
                raise outcome
            case _:
                results[name] = outcome
    return results, failures
