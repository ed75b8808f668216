"""Launch scripts in bash are read as bash would read them, and nothing of them is run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_importing import arithmetic
from rljob_importing.shell import read
from rljob_importing.shell_words import ShellError, TooMuchError


def words(text, files=None, **given):
    """Return the texts of the last command."""
    return [word.text for word in read(text, (files or {}).get, given).commands[-1]]


def unknown(text):
    return [reason for word in read(text, {}.get, {}).commands[-1] for reason in word.unknown]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=(--a 1\n  # --b 2\n  --c 'x y' # z\n)\nrun ${A[@]}", ["run", "--a", "1", "--c", "x", "y"]),
        ('A=(1 2)\nA+=(3)\nrun "${A[@]}" x', ["run", "1", "2", "3", "x"]),
        ('A=()\nrun ${A[@]} "${A[@]}" x', ["run", "x"]),
        ('A="--a 1"\nrun $A "$A"', ["run", "--a", "1", "--a 1"]),
        ("run a \\\n  b \\\n  c", ["run", "a", "b", "c"]),
        ("run ${X:-1} ${Y-2} ${Z:=3} ${Z}", ["run", "1", "2", "3", "3"]),
        ("X=5\nrun ${X:-1} ${X:+on} ${N:+on}", ["run", "5", "on"]),
        ("A=/a\nB=${A}/b\nexport C=$B/c\nrun --x=$C", ["run", "--x=/a/b/c"]),
        ("B=${A:-${C:-deep}}\nrun $B", ["run", "deep"]),
        ("N=2\nrun $((8 * N)) $(( (N + 1) % 2 ))", ["run", "16", "1"]),
        ("cat <<END\nrun ' (\nEND\nrun x", ["run", "x"]),
        ("run a 2>&1 > out.log", ["run", "a"]),
        ("run 'a b' \"c 'd'\" e\\ f", ["run", "a b", "c 'd'", "e f"]),
        ("A=1 B=2 run x", ["run", "x"]),
        ('run "" a#b', ["run", "", "a#b"]),
        ("declare -a A=(1 2)\nrun ${A[@]}", ["run", "1", "2"]),
        ("local -r A=1\nexport -n B\nrun $A", ["run", "1"]),
        ("A=2\nsubmit -- bash -lc \"run $A 'x y'\"", ["run", "2", "x y"]),
        ("/bin/sh -c 'run 1; run 2'", ["run", "2"]),
        ('N=3\nCOMMAND="run $N" sbatch ray.sub', ["run", "3"]),
        ("python -c 'run 1'", ["python", "-c", "run 1"]),
    ],
)
def test_words_are_expanded_as_bash_does(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("run $(hostname)", "$(hostname) is not evaluated"),
        ("run `hostname`", "$(hostname) is not evaluated"),
        ("run $BASE/x", "$BASE is not set in the script"),
        ("if [ $X ]; then A=1; else A=2; fi\nrun $A", "$A is set under a condition, line 1"),
        ("[ $X ] && A=1\nrun $A", "$A is set under a condition, line 1"),
        ("for I in 1 2; do\nrun $I\ndone", "$I has a value for each pass of a loop"),
        ("A=x.y\nrun ${A%.y}", "${A%.y} is not evaluated"),
        ("run $((1 / 0))", "$((1 / 0)) is not evaluated"),
    ],
)
def test_what_only_a_run_knows_is_named(text, reason):
    assert unknown(text) == [reason]


def test_nothing_is_run(tmp_path):
    target = tmp_path / "made"
    read(
        f"touch {target}\nA=$(touch {target})\nrun `touch {target}` $((__import__('os').mkdir('{target}')))", {}.get, {}
    )

    assert not target.exists()


def test_a_sourced_file_is_read_as_if_it_stood_there():
    text = 'D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\nsource "${D}/models/m.sh"\nrun ${M[@]}'
    script = read(text, {"./models/m.sh": "M=(--layers 3)\n"}.get, {})

    assert [(word.text, word.file) for word in script.commands[-1][1:]] == [("--layers", "m.sh"), ("3", "m.sh")]


def test_a_missing_sourced_file_is_named():
    assert read("source $X/m.sh\nrun", {}.get, {}).notes == (
        "line 1: the sourced file ${X}/m.sh was not found; its arguments are missing",
    )


def test_a_file_that_sources_itself_ends():
    script = read("source a.sh", {"a.sh": "source a.sh\nrun x\n"}.get, {})

    assert [word.text for word in script.commands[-1]] == ["run", "x"]


def test_a_variable_of_the_caller_is_not_changed_by_the_script():
    assert words("X=1\nrun $X", X="2") == ["run", "2"]


def test_items_of_an_array_keep_their_lines():
    script = read("A=(\n  --a 1\n  --b 2\n)\nrun ${A[@]}", {}.get, {})

    assert [word.line for word in script.commands[-1]] == [5, 2, 2, 3, 3]


@pytest.mark.parametrize("text", ["run 'a", 'run "a', "A=(1 2", "run ${A", "run $(ls"])
def test_what_is_never_closed_is_named_with_its_line(text):
    with pytest.raises(ShellError, match="line 1"):
        read(text, {}.get, {})


@pytest.mark.parametrize(
    ("expression", "value"),
    [("7 / 2", 3), ("-7 / 2", -3), ("-7 % 2", -1), ("2 ** 9", None), ("x", None), ("9" * 30, None), ("f(1)", None)],
)
def test_arithmetic_is_that_of_the_shell(expression, value):
    assert arithmetic.value(expression, {}.get) == value


PARTS = [
    "A=(",
    ")",
    "$(",
    "${A:-",
    "}",
    '"',
    "'",
    "`",
    "\\",
    "\n",
    " ",
    "$((1+",
    "))",
    "<<E",
    "if",
    "fi",
    "--x",
    "$A",
    "source a",
    "#",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*PARTS, "é", "\0"]), max_size=30))
def test_any_text_is_read_or_refused(parts):
    try:
        script = read("".join(parts), {"a": "x"}.get, {})
    except ShellError:
        return

    assert all(command for command in script.commands)


def test_words_of_a_text_stand_where_the_text_stands():
    script = read("A=1\nbash -c '\n\nrun x'", {}.get, {})

    assert [word.line for word in script.commands[-1]] == [2, 2]


def test_a_text_that_runs_itself_ends():
    assert 50 < len(read('COMMAND="X=1 sbatch a" sbatch b', {}.get, {}).commands) < 150


DOUBLED = "A=$A$A\n"
TOO_MUCH = {
    "a variable that doubles": "A=xxxxxxxxxx\n" + DOUBLED * 27,
    "a variable that grows": "A=x\nB=" + "y" * 60_000 + "\n" + "A+=$B\n" * 20,
    "a default that doubles": "A=xxxxxxxxxx\n" + "A=${B:-$A$A}\n" * 27,
    "an alternative that doubles": "A=xxxxxxxxxx\n" + "A=${A:+$A$A}\n" * 27,
    "an array that doubles": "A=(x y)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 22,
    "an array that grows": "A+=(x)\n" * 10_001,
    "an array of one variable": "A='" + "x " * 10_001 + "'\nB=($A)\n",
    "an array used many times": "A=(" + "x " * 9_000 + ")\n" + 'run "${A[@]}"\n' * 200,
    "a long word used many times": "A=" + "x" * 1_000_000 + "\n" + "run $A\n" * 20,
    "texts that run themselves": "A='" + "x" * 100_000 + "'\n" + 'bash -c "$A"\n' * 90,
    "files that are long together": "source a\n" * 90,
    "commands": "run x\n" * 100_000,
    "reasons that are kept": "A+=$(x)\n" * 5_000,
    "nested defaults": "run " + "${a:-" * 2_000 + "x" + "}" * 2_000,
}


@pytest.mark.parametrize("text", TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_a_script_that_makes_too_much_is_refused_before_it_does(text):
    with pytest.raises(TooMuchError, match="more than"):
        read(text, {"a": "A=1\n" * 30_000}.get, {})


def test_a_large_script_of_the_usual_kind_is_read():
    lines = "".join(f"   --flag-{index} {index}.5\n" for index in range(2_000))
    script = read(f"ARGS=(\n{lines})\nA={'x' * 100_000}\npython3 train.py ${{ARGS[@]}} $A\n", {}.get, {})
    assert len(script.commands[-1]) == 2 + 4_000 + 1


def test_the_place_of_a_script_is_looked_for_only_in_short_commands():
    text = 'run $(dirname "$0")/a $(dirname ' + "dirname " * 50_000 + "$0)"
    assert words(text)[1] == "./a"
    assert len(unknown(text)) == 1


def test_an_expression_that_is_too_long_is_not_computed():
    assert unknown(f"run $(({'1+' * 1_000}1))") != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('A="x=$HOME/m y=2"\nrun $A', [("x=${HOME}/m", "$HOME is not set in the script"), ("y=2", "")]),
        (
            'B=${B:-$HOME/m}\nA="x=$B/q \\\n  y=2"\nrun $A',
            [("x=${HOME}/m/q", "$HOME is not set in the script"), ("y=2", "")],
        ),
        ('A="x=$(ls a b) y=2"\nrun $A', [("x=$(ls a b)", "$(ls a b) is not evaluated"), ("y=2", "")]),
        ('A="x=$(ls {) y=2"\nrun $A', [("x=$(ls {)", "$(ls {) is not evaluated"), ("y=2", "")]),
        ('A="x=1 y=${B%.y}"\nrun $A', [("x=1", ""), ("y=${B%.y}", "${B%.y} is not evaluated")]),
        ('A="x=$((B + 1)) y=2"\nrun $A', [("x=$((B + 1))", "$((B + 1)) is not evaluated"), ("y=2", "")]),
        ('[ $X ] && B=1\nA="x=$B y=2"\nrun $A', [("x=${B}", "$B is set under a condition, line 1"), ("y=2", "")]),
        (
            'A="x=$B y=$B z"\nrun $A',
            [("x=${B}", "$B is not set in the script"), ("y=${B}", "$B is not set in the script"), ("z", "")],
        ),
        ("run $A", [("${A}", "$A is not set in the script")]),
        ('A="x=$B y=2"\nrun "$A"', [("x=${B} y=2", "$B is not set in the script")]),
        ('A="x=$B y=2"\nC=($A)\nrun "${C[@]}"', [("x=${B}", "$B is not set in the script"), ("y=2", "")]),
    ],
)
def test_a_list_with_an_unknown_part_is_split_and_only_that_part_is_unknown(text, expected):
    command = read(text, {}.get, {}).commands[-1]
    assert [(word.text, "; ".join(word.unknown)) for word in command[1:]] == expected


def test_a_long_list_with_unknown_parts_is_split_in_a_moment():
    listed = " ".join(f"x{index}=$(a{index})" for index in range(3_000))
    command = read(f'A="{listed}"\nrun $A', {}.get, {}).commands[-1]
    assert [len(word.unknown) for word in command[1:]] == [1] * 3_000
