"""Each exception class of the trainer says how it ends a run, or is known to end none."""

import ast
import pickle
from importlib import import_module
from pathlib import Path

import pytest

import rljob_trainer
from rljob_api.errors import RunError
from rljob_api.exits import Exit

PACKAGE = Path(rljob_trainer.__file__).parent
END_NO_RUN = {
    # Caught in the driver, which asks again, leaves a sample out, or converts them.
    "conversations/errors.py": {"ConversationOverError"},
    "data/hub_answers.py": {"HubAnswerError"},
    "data/limited_answer.py": {"SlowAnswerError"},
    "gateway/errors.py": {"RequestError"},
    "gateway/parsing.py": {"UnknownParserError"},
    "generator.py": {"GenerationFailedError"},
    "preflight/tokenizer.py": {"TokenizerFileError"},
    "processes/answers.py": {"AnswerError"},
    "processes/function_pool.py": {"_ClosedError"},
    "processes/function_workers.py": {"FunctionError"},
    "processes/text_makers.py": {"ForeignFileError", "CostlyTemplateError"},
    "rundir/uploads.py": {"_EndedError"},
    "sandboxes/client.py": {"PodAwayError", "PodLostError", "PodRefusesError"},
    "sandboxes/namespaces.py": {"NamespaceError"},
    "sync/transport.py": {"_AttemptError"},
    "user_code.py": {"NotThereError"},
    # Answers of the control protocol.
    "control/orders.py": {"UnknownEngineError", "GenerationError", "ScaleError"},
    "control/server.py": {"ParameterError"},
    # In a process that is not the driver, to which they come as an answer, LearnerError or EngineError.
    "conversations/pod_server.py": {"RequestError"},
    "engines/actor/weight_copy.py": {"CopyError"},
    "engines/weight_delta.py": {"DeltaError"},
    "learners/objectives/trial.py": {"ObjectiveError"},
    "processes/function_worker.py": {"Refused"},
    "processes/sandbox.py": {"Refused"},
    "processes/system_calls.py": {"FilterError"},
    "sync/rank/sender.py": {"SendError"},
    # Of the command line, which looks at a run.
    "learners/rank/conversion.py": {"ConversionError"},
    "reporting/reading/history.py": {"NotARunError"},
    "rundir/inspection.py": {"NothingFoundError"},
    "rundir/trajectories.py": {"NothingKeptError"},
}


def exceptions() -> dict[str, dict[str, set[str]]]:
    """Return the bases of each class that is an exception by the names of its bases, by file and name."""
    classes = {
        (str(file.relative_to(PACKAGE)), node.name): {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    found: dict[str, dict[str, set[str]]] = {}
    for (file, name), bases in classes.items():
        if any(base.endswith(("Error", "Exception")) for base in bases):
            found.setdefault(file, {})[name] = bases
    return found


def run_errors() -> list[type[RunError]]:
    """Return the classes of errors that end a run; the others are known to end none."""
    classes = [
        getattr(import_module(f"rljob_trainer.{file.removesuffix('.py').replace('/', '.')}"), name)
        for file, names in exceptions().items()
        for name in names
        if name not in END_NO_RUN.get(file, ())
    ]
    return sorted(classes, key=lambda each: each.__name__)


def test_those_that_end_no_run_are_exceptions_of_the_trainer():
    found = exceptions()
    assert {file: names & found.get(file, {}).keys() for file, names in END_NO_RUN.items()} == END_NO_RUN


@pytest.mark.parametrize("kind", run_errors(), ids=lambda kind: kind.__name__)
def test_an_error_that_ends_a_run_has_an_exit_code(kind: type[RunError]):
    assert issubclass(kind, RunError), "derive it from RunError with an exit code, or name it in END_NO_RUN"
    assert isinstance(kind.exit, Exit)


@pytest.mark.parametrize("kind", run_errors(), ids=lambda kind: kind.__name__)
def test_an_error_that_ends_a_run_comes_through_ray_as_it_was(kind: type[RunError]):
    got = pickle.loads(pickle.dumps(kind("what happened")))
    assert (type(got), str(got), got.exit) == (kind, "what happened", kind.exit)
