"""Splits the text of a bash script into words and operators, as far as launch scripts need it. Nothing is expanded.

bashlex would do this, but it is GPL-3.0 and cannot read arrays, which hold most arguments of a launch script.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

BLANK = " \t\r"
OPERATORS = ("&&", "||", ";;", "<<<", "<<-", "<<", ">>", "&>", "<&", ">&", ";", "|", "&", "<", ">", "(", ")", "\n")
OPERATOR = re.compile("|".join(map(re.escape, OPERATORS)))
ENDS_WORD = frozenset(f"{BLANK}\n;|&<>()")
ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
HEREDOCS = ("<<", "<<-")
PLAIN = re.compile(r"""[^\\"'$`\s;|&<>()]+""")
OPENED = re.compile(r"\$([{(])")
BRACKETS = {"{": re.compile(r"[{}]"), "(": re.compile(r"[()]")}
NOT_BLANK = re.compile(r"\S+")
PLAIN_IN_QUOTES = re.compile(r"""[^\\"$`]+""")


class PieceKind(StrEnum):
    TEXT = "Text"
    PARAMETER = "Parameter"
    """`${…}` or `$NAME`; the text is what the braces hold"""
    ARITHMETIC = "Arithmetic"
    COMMAND = "Command"
    """`$(…)` or backticks; the text is the command"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word, which is expanded in one way."""

    kind: PieceKind
    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class RawWord:
    """A word before its expansion."""

    pieces: tuple[Piece, ...]
    line: int

    @property
    def plain(self) -> str:
        """The text of an unquoted word without expansions; empty for any other."""
        only_text = all(piece.kind is PieceKind.TEXT and not piece.quoted for piece in self.pieces)
        return "".join(piece.text for piece in self.pieces) if only_text else ""


@dataclass(frozen=True, slots=True)
class Operator:
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Array:
    """`NAME=(…)` or `NAME+=(…)`."""

    name: str
    appends: bool
    words: tuple[RawWord, ...]
    line: int


Token = RawWord | Operator | Array


class ShellError(ValueError):
    """A text that is not bash: a quote or bracket that is never closed."""


class TooMuchError(ShellError):
    """A script whose variables, words or text grow beyond the limits."""


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a script. Raises ShellError with the line."""
    return Splitter(text).tokens()


def pieces(text: str, *, quoted: bool) -> tuple[Piece, ...]:
    """Return the pieces of one word, for example of the default in `${NAME:-default}`. Raises ShellError."""
    return tuple(Splitter(text).pieces(quoted=quoted, until=""))


def split(text: str) -> list[str]:
    """Return expanded text split at blanks; an expansion that is left in it, `$(a b)`, is not split."""
    whole: list[str] = []
    last = 0
    for begin, end in _spans(text):
        whole += [text[last:begin], "x" * (end - begin)]
        last = end
    bare = "".join([*whole, text[last:]])
    return [text[found.start() : found.end()] for found in NOT_BLANK.finditer(bare)]


def expansions(text: str) -> list[str]:
    """Return the expansions that are left in expanded text, `${A}` and `$(a b)`."""
    return [text[begin:end] for begin, end in _spans(text)]


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the outermost expansions begin and end; one that is never closed ends with the text."""
    at = 0
    while found := OPENED.search(text, at):
        at = _closed(text, found.end() - 1, BRACKETS[found[1]])
        yield found.start(), at


def _closed(text: str, at: int, brackets: re.Pattern[str]) -> int:
    """Return the place after the bracket that closes the one here."""
    depth = 0
    for found in brackets.finditer(text, at):
        depth += 1 if found[0] in "{(" else -1
        if depth == 0:
            return found.end()
    return len(text)


class Splitter:
    """Reads a text once, from its start to its end."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.heredocs: list[str] = []

    def tokens(self) -> Iterator[Token]:
        wants_delimiter = False
        while not self.ended():
            self.skip_blank()
            if self.ended():
                return
            if operator := self.operator():
                yield operator
                wants_delimiter = operator.text in HEREDOCS
                continue
            word = self.word()
            if wants_delimiter:
                self.heredocs.append("".join(piece.text for piece in word.pieces))
                wants_delimiter = False
            assigned = ARRAY.fullmatch(word.plain)
            if assigned and self.here("("):
                yield self.array(assigned[1], bool(assigned[2]), word.line)
            else:
                yield word

    def ended(self) -> bool:
        return self.at >= len(self.text)

    def here(self, expected: str) -> bool:
        return self.text.startswith(expected, self.at)

    def take(self, count: int = 1) -> str:
        taken = self.text[self.at : self.at + count]
        self.at += count
        self.line += taken.count("\n")
        return taken

    def skip_blank(self) -> None:
        """Skip blanks, continued lines and comments, but no end of a line."""
        while not self.ended():
            if self.text[self.at] in BLANK:
                self.take()
            elif self.here("\\\n"):
                self.take(2)
            elif self.here("#"):
                self.take(len(self.rest_of_line()))
            else:
                return

    def rest_of_line(self) -> str:
        end = self.text.find("\n", self.at)
        return self.text[self.at : end if end >= 0 else len(self.text)]

    def operator(self) -> Operator | None:
        found = OPERATOR.match(self.text, self.at)
        if found is None:
            return None
        operator = Operator(found[0], self.line)
        self.take(len(found[0]))
        if found[0] == "\n":
            self.skip_heredocs()
        return operator

    def skip_heredocs(self) -> None:
        for delimiter in self.heredocs:
            while not self.ended():
                line = self.rest_of_line()
                self.take(len(line) + 1)
                if line.strip() == delimiter:
                    break
        self.heredocs.clear()

    def word(self) -> RawWord:
        line = self.line
        return RawWord(tuple(self.pieces(quoted=False, until=ENDS_WORD)), line)

    def array(self, name: str, appends: bool, line: int) -> Array:
        self.take()
        words: list[RawWord] = []
        while True:
            self.skip_blank()
            if self.ended():
                raise ShellError(f"line {line}: the array {name} has no closing )")
            if self.here(")"):
                self.take()
                return Array(name, appends, tuple(words), line)
            if self.text[self.at] in ENDS_WORD:
                self.take()
            else:
                words.append(self.word())

    def pieces(self, *, quoted: bool, until: str | frozenset[str]) -> Iterator[Piece]:
        """Yield pieces up to one of the characters, which is not taken, or to the end."""
        while not self.ended() and self.text[self.at] not in until:
            here = self.text[self.at]
            if here == "\\":
                yield from self.escaped(in_quotes=quoted)
            elif here == '"' and not quoted:
                yield from self.double_quoted()
            elif here == "'" and not quoted:
                yield Piece(PieceKind.TEXT, self.enclosed("'", "'"), quoted=True)
            elif here == "$":
                yield self.expansion(quoted)
            elif here == "`":
                yield Piece(PieceKind.COMMAND, self.enclosed("`", "`"), quoted)
            else:
                plain = (PLAIN_IN_QUOTES if quoted else PLAIN).match(self.text, self.at)
                yield Piece(PieceKind.TEXT, self.take(len(plain[0]) if plain else 1), quoted)

    def escaped(self, *, in_quotes: bool) -> Iterator[Piece]:
        self.take()
        following = self.take()
        if following == "\n":
            return
        keeps = in_quotes and following not in '"\\$`'
        yield Piece(PieceKind.TEXT, f"\\{following}" if keeps else following, quoted=True)

    def double_quoted(self) -> Iterator[Piece]:
        line = self.line
        self.take()
        yield Piece(PieceKind.TEXT, "", quoted=True)
        yield from self.pieces(quoted=True, until='"')
        if self.ended():
            raise ShellError(f'line {line}: the quote " is never closed')
        self.take()

    def expansion(self, quoted: bool) -> Piece:
        if self.here("$'"):
            self.take()
            return Piece(PieceKind.TEXT, self.enclosed("'", "'"), quoted=True)
        if self.here("$(("):
            self.take()
            return Piece(PieceKind.ARITHMETIC, self.enclosed("(", ")")[1:-1], quoted)
        if self.here("$("):
            self.take()
            return Piece(PieceKind.COMMAND, self.enclosed("(", ")"), quoted)
        if self.here("${"):
            self.take()
            return Piece(PieceKind.PARAMETER, self.enclosed("{", "}"), quoted)
        self.take()
        name = NAME.match(self.text, self.at)
        if name is None:
            return Piece(PieceKind.TEXT, "$", quoted)
        return Piece(PieceKind.PARAMETER, self.take(len(name[0])), quoted)

    def enclosed(self, opening: str, closing: str) -> str:
        """Take a bracket or quote with all it holds, and return what it holds."""
        line, start, depth = self.line, self.at + 1, 1
        self.take()
        while not self.ended():
            here = self.take()
            if here == "\\" and opening != "'":
                self.take()
            elif here == closing:
                depth -= 1
                if depth == 0:
                    return self.text[start : self.at - 1]
            elif here == opening:
                depth += 1
            elif here == "'" and opening == "(":
                self.skip_to("'")
        raise ShellError(f"line {line}: {opening} is never closed")

    def skip_to(self, closing: str) -> None:
        found = self.text.find(closing, self.at)
        self.take((found if found >= 0 else len(self.text)) - self.at + 1)
