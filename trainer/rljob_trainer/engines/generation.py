"""The rollouts' generator: the router, whichever engine it picks."""

from dataclasses import dataclass

from rljob_api.sections import Sampling
from rljob_trainer.engines.client import Continuation, EngineError, EngineRefusedError, Generates, TokenRequest
from rljob_trainer.generator import GenerationFailedError
from rljob_trainer.samples import Prompt, Sample


@dataclass(frozen=True, slots=True)
class RouterGenerator:
    """Asks the router once for all samples of a prompt: the engine then computes the prompt's cache once."""

    router: Generates
    deadline_s: float

    async def generate(self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool) -> tuple[Sample, ...]:
        """Return `num_samples` samples.

        Raises GenerationFailedError when no engine answered or an answer was cut off, EngineRefusedError when the
        request itself is wrong, for example too long: asking again would never help.
        """
        request = token_request(prompt, sampling, num_samples, greedy)
        try:
            answers = await self.router.generate(request, self.deadline_s)
        except EngineRefusedError:
            raise
        except EngineError as error:
            raise GenerationFailedError(str(error)) from error
        if any(answer.finish_reason == "abort" for answer in answers):
            raise GenerationFailedError(f"prompt {prompt.uid}: aborted by engine {answers[0].engine}")
        return tuple(sample(answer) for answer in answers)


def token_request(prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool) -> TokenRequest:
    """Return the engine's form of what is wanted."""
    return TokenRequest(
        tokens_T=prompt.tokens_T,
        num_samples=num_samples,
        temperature=0.0 if greedy else sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        top_k=-1 if greedy else sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
    )


def sample(answer: Continuation) -> Sample:
    """Return the loop's form of a continuation."""
    return Sample(
        tokens_T=answer.tokens_T,
        logprobs_T=answer.logprobs_T,
        text=answer.text,
        version=answer.version,
        finish_reason=answer.finish_reason,
        engine=answer.engine,
        carried=answer.carried,
        experts=answer.experts,
    )
