"""Reads a launch script in bash: the commands that it would run, with variables, arrays and sourced files put in.

It runs nothing. What only a run could know (`$(…)`, a variable of the environment, a value that a condition decides) is
named as unknown, and stands in the text as its author wrote it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from rljob_importing import arithmetic
from rljob_importing.shell_words import (
    Array,
    Operator,
    Piece,
    PieceKind,
    RawWord,
    ShellError,
    Token,
    TooMuchError,
    expansions,
    split,
    tokens,
)
from rljob_importing.shell_words import pieces as split_pieces
from rljob_importing.words import Word

Files = Callable[[str], str | None]
"""the text of a file by its path as the script names it; None: there is none"""
Command = tuple[Word, ...]

MOST_FILES = 100
"""sourced files of one script: a file may source itself"""
LONGEST = 2**20
"""of a variable [characters]: two lines double it, and `A=$A$A` needs 20 for a megabyte"""
MOST_WORDS = 10_000
"""of an array"""
MOST_WORK = 2**24
"""characters and words that a script and what it sources may make, all together"""
COMMAND_COSTS = 500
WORD_COSTS = 64
READING_COSTS = 4
"""a command, a word, and a character of a script, in characters that are made"""
DEEPEST = 50
"""`${A:-${B:-…}}`"""
LONGEST_DIRECTORY = 300
"""of a command that asks for the script's directory [characters]"""
OPENS = frozenset({"if", "while", "until", "for", "case", "select", "{"})
CLOSES = frozenset({"fi", "done", "esac", "}"})
INTRODUCES = frozenset({"then", "else", "elif", "do", "!", "if", "while", "until", "time", "{"})
DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
REDIRECTS = frozenset({"<", ">", "<<", "<<-", "<<<", ">>", "&>", "<&", ">&"})
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
SHELLS = re.compile(r"(.*/)?(?:ba|z|da)?sh")
RUNS_TEXT = re.compile(r"-[a-z]*c")
READ, READ_LINES = "read", ("mapfile", "readarray")
"""what sets variables from text that only a run could know"""
MISSING = "; its arguments are missing"
"""end of a note on what should have had arguments"""
BATCH, BATCH_COMMAND = "sbatch", "COMMAND"
"""NeMo-RL's way to start: `COMMAND="uv run …" sbatch ray.sub`"""
PARAMETER = re.compile(r"(\w+|[@*#?$!-])(\[[^\]]*\])?(?:(:?[-=+?])(.*))?", re.DOTALL)
NOT_EVALUATED = " is not evaluated"
REASON = re.compile(r"\$(\w+) (?:is not set in the script|is set under a condition|has a value for each pass)")
SCRIPT_DIRECTORY = re.compile(r"""dirname\b[^()]*(?:BASH_SOURCE|\$0|\$\{0)[^()]*\)?["']?((?:/\.\.)*)""")
"""the usual ways to ask for the script's own directory, or one above it"""


@dataclass(frozen=True, slots=True)
class Script:
    """What was read of a script."""

    commands: tuple[Command, ...]
    notes: tuple[str, ...]
    """sourced files that could not be read"""


@dataclass(slots=True)
class Shell:
    """The variables while a script is read, and what was found."""

    files: Files
    variables: dict[str, tuple[Word, ...]]
    fixed: frozenset[str]
    """variables of the caller, which the script's own assignments do not change"""
    arrays: set[str] = field(default_factory=set)
    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    """variables that `read` sets"""
    depth: int = 0
    """how many conditions and loops are open"""
    sourced: int = 0
    file: str = ""
    nested: int = 0
    """how many defaults of variables are open"""
    work: int = 0

    def note(self, line: int, why: str) -> None:
        """Note what is not known at a line of the file that is read, once."""
        note = f"{self.file} line {line}: {why}".strip()
        if note not in self.notes:
            self.notes.append(note)

    def made(self, characters: int, line: int) -> None:
        """Count what was made. Raises TooMuchError."""
        self.work += characters
        if self.work > MOST_WORK:
            raise TooMuchError(f"line {line}: the script makes more than {MOST_WORK} characters of words")


def read(text: str, files: Files, given: Mapping[str, str]) -> Script:
    """Return the commands of a script; `given` are values of variables, for example of the environment.

    Raises ShellError if the text is not bash, and TooMuchError if it grows beyond the limits.
    """
    variables: dict[str, tuple[Word, ...]] = {name: (Word(value, 0),) for name, value in given.items()}
    shell = Shell(files, variables, frozenset(given))
    try:
        _read(shell, text)
    except RecursionError as error:
        raise TooMuchError("its commands are nested too deeply") from error
    return Script(tuple(shell.commands), tuple(shell.notes))


def _read(shell: Shell, text: str) -> None:
    shell.made(READING_COSTS * len(text), 1)
    for words, is_conditional in _simple_commands(tokens(text)):
        shell.made(COMMAND_COSTS, words[0].line)
        opened = _keywords(shell, words)
        rest = words[opened:]
        if rest:
            _run(shell, rest, is_conditional or shell.depth > 0)


def _simple_commands(found: Iterator[Token]) -> Iterator[tuple[list[RawWord | Array], bool]]:
    """Yield the words of each command, and whether it runs only after another has succeeded or failed."""
    words: list[RawWord | Array] = []
    is_conditional = skips = False
    for token in found:
        if not isinstance(token, Operator):
            if not skips:
                words.append(token)
            skips = False
        elif token.text in REDIRECTS:
            skips = True
            if words and isinstance(words[-1], RawWord) and words[-1].plain in ("1", "2"):
                words.pop()
        else:
            if words:
                yield words, is_conditional
            words, skips = [], False
            is_conditional = token.text in ("&&", "||")
    if words:
        yield words, is_conditional


def _keywords(shell: Shell, words: Sequence[RawWord | Array]) -> int:
    """Count what the keywords in front open and close; return the number of words that are keywords."""
    plain = [word.plain if isinstance(word, RawWord) else "" for word in words]
    leading = len(list(takewhile(lambda word: word in INTRODUCES or word in CLOSES, plain)))
    for word in plain[: leading + 1]:
        shell.depth += (word in OPENS) - (word in CLOSES)
    shell.depth = max(0, shell.depth)
    if leading < len(plain) and plain[leading] in ("for", "select", "case", "function"):
        if plain[leading] in ("for", "select") and len(plain) > leading + 1:
            reason = f"${plain[leading + 1]} has a value for each pass of a loop"
            shell.variables[plain[leading + 1]] = (Word(f"${{{plain[leading + 1]}}}", 0, unknown=(reason,)),)
        return len(plain)
    return leading


def _run(shell: Shell, words: Sequence[RawWord | Array], is_conditional: bool) -> None:
    """Assign, source a file, or keep the command."""
    first = words[0]
    declares = isinstance(first, RawWord) and first.plain in DECLARES
    options = sum(1 for _ in takewhile(_is_option, words[1:])) if declares else 0
    assigned = list(takewhile(_assigns, words[declares + options :]))
    for word in assigned:
        _assign(shell, word, is_conditional)
    rest = [word for word in words[declares + options + len(assigned) :] if isinstance(word, RawWord)]
    if declares or not rest:
        return
    if rest[0].plain in (READ, *READ_LINES):
        _is_read(shell, [word.plain for word in rest[1:] if word.plain and not word.plain.startswith("-")])
        return
    if rest[0].plain in ("source", ".") and len(rest) > 1:
        _source(shell, rest[1])
        return
    command = tuple(expanded for word in rest for expanded in _expand(shell, word))
    if command:
        shell.commands.append(command)
    texts = [command[index + 1] for index in range(1, len(command) - 1) if _runs_a_text(command, index)]
    if assigned and rest[0].plain == BATCH and BATCH_COMMAND in shell.variables:
        texts.append(shell.variables[BATCH_COMMAND][0])
    for text in texts:
        _read_text(shell, text)


def _is_read(shell: Shell, names: Sequence[str]) -> None:
    """Forget variables that the script fills from the output of a program or from a file."""
    for name in names:
        shell.variables.pop(name, None)
        shell.arrays.discard(name)
        shell.read.add(name)


def _runs_a_text(command: Command, index: int) -> bool:
    """Return whether the word after this one is a script: `bash -c TEXT`, also behind another program."""
    return (
        RUNS_TEXT.fullmatch(command[index].text) is not None and SHELLS.fullmatch(command[index - 1].text) is not None
    )


def _read_text(shell: Shell, text: Word) -> None:
    """Read a command that is one word of another; its words stand where that word stands."""
    begin = len(shell.commands)
    if shell.sourced >= MOST_FILES:
        return
    shell.sourced += 1
    _read(shell, text.text)
    shell.commands[begin:] = [
        tuple(replace(word, line=text.line, file=text.file) for word in command) for command in shell.commands[begin:]
    ]


def _is_option(word: RawWord | Array) -> bool:
    return isinstance(word, RawWord) and word.plain.startswith("-")


def _assigns(word: RawWord | Array) -> bool:
    return isinstance(word, Array) or ASSIGNMENT.match(_leading(word)) is not None


def _leading(word: RawWord) -> str:
    """Return the unquoted text that a word begins with."""
    begins = takewhile(lambda piece: piece.kind is PieceKind.TEXT and not piece.quoted, word.pieces)
    return "".join(piece.text for piece in begins)


def _assign(shell: Shell, word: RawWord | Array, is_conditional: bool) -> None:
    if isinstance(word, Array):
        items = tuple(expanded for each in word.words for expanded in _expand(shell, each))
        before = shell.variables.get(word.name, ()) if word.appends else ()
        if is_conditional:
            shell.note(word.line, f"the array {word.name} is set under a condition; used as it stands")
        if len(before) + len(items) > MOST_WORDS:
            raise TooMuchError(f"line {word.line}: the array {word.name} has more than {MOST_WORDS} words")
        shell.variables[word.name] = (*before, *items)
        shell.arrays.add(word.name)
        return
    found = ASSIGNMENT.match(_leading(word))
    assert found is not None, "only assignments come here"
    name, appends = found[1], bool(found[2])
    if name in shell.fixed:
        return
    value = _joined(shell, _after(word.pieces, found.end()), word.line)
    held = shell.variables.get(name)
    if appends and held:
        value = replace(_whole(shell, (held[0], value), value.line), line=value.line, file=shell.file)
    if len(value.text) > LONGEST:
        raise TooMuchError(f"line {word.line}: the variable {name} has more than {LONGEST} characters")
    if is_conditional and not (held and held[0].text == value.text):
        reason = f"${name} is set under a condition, line {word.line}"
        value = Word(f"${{{name}}}", word.line, shell.file, (reason,))
    shell.variables[name] = (value,)
    shell.arrays.discard(name)


def _after(pieces: Sequence[Piece], count: int) -> tuple[Piece, ...]:
    """Return the pieces without the first characters, which are text."""
    for index, piece in enumerate(pieces):
        if count < len(piece.text):
            return (replace(piece, text=piece.text[count:]), *pieces[index + 1 :])
        count -= len(piece.text)
    return ()


def _source(shell: Shell, word: RawWord) -> None:
    """Read a sourced file as if it stood here."""
    path = _joined(shell, word.pieces, word.line).text
    text = shell.files(path) if shell.sourced < MOST_FILES else None
    if text is None:
        shell.note(word.line, f"the sourced file {path} was not found{MISSING}")
        return
    shell.sourced += 1
    outer, shell.file = shell.file, path.rpartition("/")[2]
    try:
        _read(shell, text)
    except ShellError as error:
        raise type(error)(f"{path}: {error}") from error
    finally:
        shell.file = outer


def _joined(shell: Shell, pieces: Sequence[Piece], line: int) -> Word:
    """Return pieces as one word, as in an assignment, where nothing is split."""
    parts = [part for piece in pieces for part in _values(shell, piece, line)]
    return replace(_whole(shell, parts, line), line=line, file=shell.file) if parts else Word("", line, shell.file)


def _expand(shell: Shell, word: RawWord) -> list[Word]:
    """Return the words that a word becomes: none, one or, for an array and an unquoted list, several."""
    done: list[Word] = []
    parts: list[Word] = []
    vanished = False
    for piece in word.pieces:
        values = _split(_values(shell, piece, word.line), piece)
        vanished = vanished or not values
        for index, value in enumerate(values):
            if index:
                done.append(_whole(shell, parts, word.line))
                parts = []
            parts.append(value)
    if parts and not (vanished and not any(part.text for part in parts)):
        done.append(_whole(shell, parts, word.line))
    return done


def _split(values: list[Word], piece: Piece) -> list[Word]:
    """Return values as they are in quotes, and otherwise split at blanks."""
    if piece.kind is not PieceKind.PARAMETER or piece.quoted:
        return values
    return [part for value in values for part in _parts(value)]


def _parts(value: Word) -> list[Word]:
    """Return a value split at blanks. A part has the reasons for its own text, and those for no part's text."""
    texts = split(value.text)
    if not value.unknown:
        return [Word(text, value.line, value.file) for text in texts]
    reasons = {expansion_of(reason): reason for reason in value.unknown}
    found = [tuple(dict.fromkeys(name for name in expansions(text) if name in reasons)) for text in texts]
    placed = {name for names in found for name in names}
    others = tuple(reason for name, reason in reasons.items() if name not in placed)
    return [
        replace(value, text=text, unknown=(*(reasons[name] for name in names), *others))
        for text, names in zip(texts, found, strict=True)
    ]


def expansion_of(reason: str) -> str:
    """Return what a reason is about, as it stands in the text: `${A}` for `$A is not set in the script`."""
    if reason.endswith(NOT_EVALUATED):
        return reason.removesuffix(NOT_EVALUATED)
    found = REASON.match(reason)
    return f"${{{found[1]}}}" if found else reason


def _whole(shell: Shell, parts: Sequence[Word], line: int) -> Word:
    """Return the parts as one word, where the first text of it stands. Raises TooMuchError."""
    first = next((part for part in parts if part.text), parts[0])
    shell.made(sum(len(part.text) + WORD_COSTS * (1 + len(part.unknown)) for part in parts), line)
    unknown = tuple(dict.fromkeys(reason for part in parts for reason in part.unknown))
    return Word("".join(part.text for part in parts), first.line or line, first.file, unknown)


def _values(shell: Shell, piece: Piece, line: int) -> list[Word]:
    """Return what a piece stands for: one text, or the items of an array."""
    match piece.kind:
        case PieceKind.TEXT:
            return [Word(piece.text, line, shell.file)]
        case PieceKind.PARAMETER:
            return _parameter(shell, piece, line)
        case PieceKind.ARITHMETIC:
            result = arithmetic.value(piece.text, lambda name: _known(shell, name))
            written = f"$(({piece.text}))"
            return [_unknown(shell, written, line) if result is None else Word(str(result), line, shell.file)]
        case PieceKind.COMMAND:
            above = SCRIPT_DIRECTORY.search(piece.text) if len(piece.text) <= LONGEST_DIRECTORY else None
            written = f"$({piece.text})"
            return [Word(f".{above[1]}", line, shell.file) if above else _unknown(shell, written, line)]


def _known(shell: Shell, name: str) -> str | None:
    words = shell.variables.get(name)
    return words[0].text if words and not words[0].unknown else None


def _unknown(shell: Shell, written: str, line: int) -> Word:
    return Word(written, line, shell.file, (f"{written}{NOT_EVALUATED}",))


def _parameter(shell: Shell, piece: Piece, line: int) -> list[Word]:
    found = PARAMETER.fullmatch(piece.text)
    written = f"${{{piece.text}}}"
    if found is None:
        return [_unknown(shell, written, line)]
    name, index, action, other = found[1], found[2] or "", found[3] or "", found[4] or ""
    held = shell.variables.get(name)
    if name in shell.arrays and index in ("[@]", "[*]"):
        return list(held or ())
    is_set = held is not None and (bool(held and (held[0].text or held[0].unknown)) or not action.startswith(":"))
    if action.endswith("+"):
        return [_other(shell, other, piece.quoted, line)] if is_set else []
    if is_set and held is not None:
        return list(held[:1])
    if action.endswith(("-", "=")):
        value = _other(shell, other, piece.quoted, line)
        if action.endswith("="):
            shell.variables[name] = (value,)
        return [value]
    if name in ("@", "*"):
        return []
    if index in ("[@]", "[*]"):
        why = "is read while the script runs" if name in shell.read else "is not set in the script"
        shell.note(line, f"the array {name} {why}{MISSING}")
        return []
    return [Word(written, line, shell.file, (f"${name} is not set in the script",))]


def _other(shell: Shell, text: str, quoted: bool, line: int) -> Word:
    """Return what `${NAME:-text}` stands for where it is the text. Raises TooMuchError."""
    if shell.nested >= DEEPEST:
        raise TooMuchError(f"line {line}: more than {DEEPEST} defaults of variables stand in each other")
    shell.made(READING_COSTS * len(text), line)
    shell.nested += 1
    try:
        return _joined(shell, split_pieces(text, quoted=quoted), line)
    finally:
        shell.nested -= 1
