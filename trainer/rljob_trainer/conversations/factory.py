"""Chooses the generate function that `spec.rollout` names, and starts what it needs."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from rljob_api.sections import Rollout, Spec
from rljob_api.sizing.token_limits import context_room
from rljob_trainer.conversations.conversation import Limits
from rljob_trainer.conversations.function import Function, load
from rljob_trainer.conversations.generator import Engines, FunctionGenerator
from rljob_trainer.conversations.tool_loop import ToolLoop
from rljob_trainer.conversations.tool_pods import pool_of
from rljob_trainer.conversations.toolbox import Toolbox, tools
from rljob_trainer.conversations.turns import Turns
from rljob_trainer.data.tokenizer import load_config, load_tokenizer
from rljob_trainer.engines.client import RouterClient, open_session
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.losses import Losses, Outage

log = logging.getLogger(__name__)

CLOSE_S = 10.0


def function(
    spec: Spec,
    log_file: Path,
    stack: ExitStack,
    environ: Mapping[str, str],
    losses: Losses | None = None,
    alive: Callable[[], None] = lambda: None,
) -> Function | None:
    """Return what makes samples in several steps; None: the model answers once. Raises GenerateError and AwayError.

    What tools print goes to `log_file`; `stack` ends their processes. `environ` says whether there are pods for tools.
    `losses` learns what calls wait for, and `alive` is called meanwhile.
    """
    rollout = spec.rollout
    if rollout.tools is not None:
        toolbox = Toolbox(
            tools(rollout.tools),
            rollout.tools,
            log_file,
            pool=pool_of(spec, environ),
            losses=losses,
            longest_s=spec.recovery.outage_seconds,
            alive=alive,
        )
        stack.callback(toolbox.close)
        toolbox.load()
        return Function("rollout.tools", ToolLoop(toolbox, rollout.tools.max_turns))
    return None if rollout.generate is None else load(rollout.generate)


def schemas(spec: Spec) -> tuple[Mapping[str, Any], ...]:
    """Return the schemas of the tools, as the chat template needs them. Raises GenerateError."""
    return tuple(tool.schema for tool in tools(spec.rollout.tools))


def made_by(rollout: Rollout) -> Mapping[str, Any]:
    """Return what decides such samples, for dumps; nothing where the model answers once."""
    ways: dict[str, Any] = {"spec.rollout.generate": rollout.generate}
    if rollout.tools is not None:
        ways["spec.rollout.tools"] = rollout.tools.model_dump(mode="json", by_alias=True)
    if rollout.agent is not None:
        ways["spec.rollout.agent"] = rollout.agent.model_dump(mode="json", by_alias=True)
    chosen = {name: way for name, way in ways.items() if way is not None}
    return chosen | {"spec.rollout.overflow": rollout.overflow} if chosen else {}


def function_generator(
    function: Function,
    spec: Spec,
    model: Path,
    router: RouterClient,
    patience_s: float,
    alive: Callable[[], None],
    stack: ExitStack,
    outage: Outage | None = None,
) -> FunctionGenerator:
    """Return a generator that has `function` make samples with the engines behind a router; `stack` ends its loop.

    `router` is asked over connections of that loop. `patience_s` is the longest time without any answer [s]; `alive`
    is called on every answer. `outage` decides which samples are lost; None: an error of one is an error of all.
    """
    tokenizer, rollout = load_tokenizer(model), spec.rollout
    apart = stack.enter_context(own_loop())
    engines = Engines(replace(router, session=apart.session), rollout.longest_request_s, patience_s, alive)
    return FunctionGenerator(
        function=function,
        own_time_s=rollout.generate_timeout_seconds if rollout.tools is None else math.inf,  # tools have other limits
        engines=engines,
        tokenizer=tokenizer,
        turns=Turns(tokenizer, spec.data.chat_template, schemas(spec)),
        limits=Limits(
            context=context_room(spec, load_config(model).max_position_embeddings),
            new_tokens=rollout.sampling.max_new_tokens,
            overflow=rollout.overflow,
        ),
        apart=apart.loop,
        outage=outage,
    )


@dataclass(frozen=True, slots=True)
class Apart:
    """An event loop in its own thread, with its connections."""

    loop: Background
    session: ClientSession


@contextmanager
def own_loop() -> Iterator[Apart]:
    """Run an event loop meanwhile. One that a function holds up at the end is left to end with the process."""
    loop = Background()
    loop.__enter__()
    session = loop.run(_opened(), timeout_s=CLOSE_S)
    try:
        yield Apart(loop, session)
    finally:
        try:
            loop.run(session.close(), timeout_s=CLOSE_S)
            loop.__exit__(None, None, None)
        except TimeoutError:
            log.warning("action=leave_loop reason=a generate function does not give way")


async def _opened() -> ClientSession:
    return open_session()
