"""A model that calls tools gets their results, or what was wrong, and never takes the run down."""

import asyncio
import json
from contextlib import ExitStack

import pytest

from rljob_api.sections import Rollout, Sampling, Tools
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.factory import made_by
from rljob_trainer.conversations.tool_calls import BadCall, ToolCall, calls
from rljob_trainer.conversations.tool_loop import ToolLoop
from rljob_trainer.conversations.toolbox import Toolbox, ToolProcess, tools
from rljob_trainer.tools.calculator import calculator
from rljob_trainer.tools.python import python
from support.processes import gone
from support.trainer.scripted_model import Says
from support.waiting import until

LONG = Sampling(max_new_tokens=800)
OWN = """
import os, time

def echo(text: str) -> str:
    '''
    Repeat a text.

    Args:
        text: what to repeat
    '''
    print("echo", text)
    return text

def does(what: str) -> dict:
    '''
    Do something.

    Args:
        what: one of several things
    '''
    match what:
        case "raise":
            raise ValueError("no")
        case "sleep":
            open("sleeps", "w").close()
            time.sleep(600)
        case "die":
            os._exit(3)
        case "eat":
            return {"size": len(bytearray(2**30))}
    return {"done": what}

async def awaits(text: str) -> str:
    '''
    Repeat a text later.

    Args:
        text: what to repeat
    '''
    import asyncio
    await asyncio.sleep(0)
    return text

def meets(name: str) -> str:
    '''
    Wait for the other.

    Args:
        name: who comes
    '''
    open(f"{name}-is-here", "w").close()
    while not (os.path.exists("a-is-here") and os.path.exists("b-is-here")):
        time.sleep(0.01)
    return "met"

def untold(text):
    return text

def python(code: str) -> str:
    '''
    Another one.

    Args:
        code: some
    '''
"""


@pytest.fixture(autouse=True)
def own_tools(tmp_path, monkeypatch):
    (tmp_path / "own_tools.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def toolbox(tmp_path):
    """Return a function that opens a toolbox. Its time passes when a tool begins to sleep, and not before."""
    with ExitStack() as stack:

        def opened(*functions, **settings):
            given = Tools(functions=functions, **{"memory_mib": 512, "concurrency": 2, "sandbox": "None", **settings})
            box = Toolbox(tools(given), given, tmp_path / "tools.log", lambda: 1e6 * (tmp_path / "sleeps").exists())
            stack.callback(box.close)
            return box

        yield opened


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is 2.", ()),
        (call("f", x=1), (ToolCall("f", {"x": 1}),)),
        (f"Well, {call('f', x={'y': '}'})} and {call('g')}.", (ToolCall("f", {"x": {"y": "}"}}), ToolCall("g", {}))),
        ('<tool_call>{"name": "f"}</tool_call>', (ToolCall("f", {}),)),
        ('<tool_call>\n{"name": "f", "arguments": {}}<|im_end|>'.replace("<|im_end|>", ""), (ToolCall("f", {}),)),
        ("<tool_call>[1]</tool_call>", (BadCall('a call is an object with "name" and "arguments"'),)),
        (
            '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
            (BadCall('a call is an object with "name" and "arguments"'),),
        ),
    ],
)
def test_calls_are_read_as_hermes_and_qwen_write_them(text, found):
    assert calls(text) == found


def test_what_is_no_json_is_a_bad_call_that_says_where():
    (bad,) = calls("<tool_call>{name: f}</tool_call>")
    assert isinstance(bad, BadCall)
    assert bad.reason.startswith("the call is not JSON: Expecting property name")


@pytest.mark.parametrize(
    ("expression", "value"), [("2 * (3 + 4)", "14"), ("-7 // 2", "-4"), ("1 / 4", "0.25"), ("2 ** 10 % 7", "2")]
)
def test_the_calculator_calculates(expression, value):
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression", ["9 ** 9 ** 9", "10 ** 100", "exit()", "x", "'a' * 9", "True + 1", "(-1) ** 0.5", "1e30 * 10"]
)
def test_the_calculator_refuses_all_else_at_once(expression):
    with pytest.raises((ValueError, TypeError)):
        calculator(expression)


def test_python_prints_what_the_code_prints_and_its_errors(monkeypatch):
    monkeypatch.setenv("RLJOB_SECRET", "secret")
    assert python("print(6 * 7)") == "42"
    assert python("pass") == "(nothing was printed)"
    assert python("1 / 0").endswith("ZeroDivisionError: division by zero")
    assert python("import os; print(os.environ.get('RLJOB_SECRET'), os.listdir())") == "None []"
    assert len(python("print('x' * 10**6)")) == 4000


def test_python_leaves_nothing_running():
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"
    pid = int(python(code))
    until(lambda: gone(pid))


def test_tools_are_described_by_their_hints_and_docstrings():
    (builtin, own) = tools(Tools(functions=("calculator", "own_tools:echo")))
    assert (builtin.name, own.name) == ("calculator", "echo")
    function = own.schema["function"]
    assert function["description"] == "Repeat a text."
    assert function["parameters"]["properties"] == {"text": {"type": "string", "description": "what to repeat"}}


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        (("absent:f",), "rollout.tools.functions absent:f: cannot import absent"),
        (("own_tools:absent",), "own_tools has no absent"),
        (("own_tools:untold",), "own_tools:untold: .*docstring"),
        (("python", "own_tools:python"), "two tools of the name python"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused_at_once(functions, said):
    with pytest.raises(GenerateError, match=said):
        tools(Tools(functions=functions))


def test_results_and_troubles_reach_the_model(toolbox, tmp_path):
    box = toolbox("own_tools:echo", "own_tools:does", "own_tools:awaits", timeout_seconds=2)

    async def results():
        asked = [
            ToolCall("echo", {"text": "a"}),
            ToolCall("does", {"what": "it"}),
            ToolCall("does", {"what": "raise"}),
            ToolCall("does", {"how": "so"}),
            ToolCall("awaits", {"text": "done"}),
            ToolCall("does", {"what": "eat"}),
            ToolCall("does", {"what": "die"}),
            ToolCall("does", {"what": "sleep"}),
            ToolCall("search", {}),
            BadCall("the call is not JSON"),
            ToolCall("echo", {"text": "b" * 20_000}),
        ]
        return [await box.result(each) for each in asked]

    said = asyncio.run(results())
    assert said[:2] == ["a", '{"done": "it"}']
    assert said[2] == "Error: ValueError: no"
    assert said[3].startswith("Error: TypeError: does() got an unexpected keyword argument 'how'")
    assert said[4] == "done"
    assert said[5] == "Error: more than 512 MiB of memory were needed"
    assert said[6] == "Error: the tool's process ended with code 3"
    assert said[7] == "Error: no result within 2 s"
    assert said[8] == "Error: there is no tool search, only echo, does, awaits"
    assert said[9] == "Error: the call is not JSON"
    assert len(said[10]) == 10_001
    assert "echo a" in (tmp_path / "tools.log").read_text()


def test_a_tool_that_hangs_is_waited_for_as_long_as_the_manifest_says_and_then_starts_again(toolbox):
    box = toolbox("own_tools:does", "own_tools:echo", timeout_seconds=1, concurrency=1)

    async def said():
        late = await box.result(ToolCall("does", {"what": "sleep"}))
        return late, await box.result(ToolCall("echo", {"text": "again"}))

    assert asyncio.run(said()) == ("Error: no result within 1 s", "again")


def test_calls_go_on_at_once_in_processes_of_their_own(toolbox):
    box = toolbox("own_tools:meets", concurrency=2)

    async def said():
        return await asyncio.gather(*(box.result(ToolCall("meets", {"name": name})) for name in "ab"))

    assert asyncio.run(said()) == ["met", "met"]


def test_the_model_goes_on_with_results_until_it_calls_nothing(made, toolbox):
    loop = ToolLoop(toolbox("calculator", "own_tools:echo"), max_turns=4)
    script = [Says(f"Let me see. {call('calculator', expression='19 * 21')}{call('echo', text='hm')}"), Says("399.")]
    (sample,), asked = made(loop, script, sampling=LONG)
    first, results, last = sample.segments
    assert (sample.text, sample.finish_reason) == ("399.", "stop")
    assert [first.by_model, results.by_model, last.by_model] == [True, False, True]
    assert results.text == (
        "\n<|im_start|>tool\n399<|im_end|>\n<|im_start|>tool\nhm<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(asked) == 2


def test_a_model_that_calls_for_ever_is_cut_off(made, toolbox):
    loop = ToolLoop(toolbox("calculator"), max_turns=2)
    (sample,), asked = made(loop, lambda text: Says(call("calculator", expression="1 + 1")), sampling=LONG)
    assert (sample.finish_reason, len(asked), len(sample.segments)) == ("length", 2, 3)


def test_a_call_that_was_cut_off_is_not_tried(made, toolbox):
    loop = ToolLoop(toolbox("calculator"), max_turns=4)
    short = Sampling(max_new_tokens=20)
    (sample,), asked = made(loop, [Says(call("calculator", expression="1 + 1"))], sampling=short)
    assert (sample.finish_reason, len(asked), len(sample.segments)) == ("length", 1, 1)


def test_what_makes_samples_is_part_of_what_decided_them():
    plain = Rollout(prompts_per_step=1, sampling=LONG)
    assert made_by(plain) == {}
    own = plain.model_copy(update={"generate": "a:b", "overflow": "Drop"})
    assert made_by(own) == {"spec.rollout.generate": "a:b", "spec.rollout.overflow": "Drop"}
    settings = made_by(plain.model_copy(update={"tools": Tools(functions=("calculator",), max_turns=3)}))
    assert json.loads(json.dumps(settings)) == settings
    assert settings["spec.rollout.tools"]["maxTurns"] == 3


class Hangs:
    """A process that answers no call, on a clock of its own."""

    end = None
    is_forged = False

    def __init__(self) -> None:
        self.now_s = 100.0
        self.did: list[str] = []

    def send(self, call: object) -> None:
        self.did.append("send")

    def receive(self, timeout_s: float) -> None:
        self.now_s += timeout_s

    def trace(self) -> None:
        self.did.append("trace")

    def stop(self) -> None:
        self.did.append("stop")


def test_a_tool_is_waited_for_until_its_time_is_over_and_no_longer(tmp_path, monkeypatch):
    hangs = Hangs()
    monkeypatch.setattr("rljob_trainer.conversations.toolbox.start", lambda *_, **__: hangs)
    given = Tools(functions=("calculator",), timeout_seconds=3, sandbox="None")
    process = ToolProcess(given, tmp_path / "tools.log", lambda: hangs.now_s)
    assert process.call("own_tools:does", {}) == "Error: no result within 3 s"
    assert (hangs.now_s, hangs.did) == (pytest.approx(103.0), ["send", "trace", "stop"])
