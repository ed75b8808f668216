"""What in a manifest, a script or a URL is a secret: by its name, or by its form.

The rules refuse such texts, importers do not carry them over, and reports leave them out.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

HIDDEN = "***"
"""stands where a value was left out"""

_NAME = re.compile(
    r"(?:^|[_.-])(?:KEY|PASS|PWD|PASSPHRASE|AUTHORIZATION|CREDENTIALS?|PAT)$"
    r"|(?:API|ACCESS|SECRET|PRIVATE|ACCOUNT|AUTH|SIGNING|ENCRYPTION|MASTER|SSH)[_.-]?KEYS?$"
    r"|(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|BEARER|SECRET[_.-]KEY[_.-]BASE)$"
)
_ENDS = re.compile(r"[_.-]?\d+$|[_.-](?:BASE64|B64|VALUE|TEXT|STRING)$")
"""what may stand behind such a word"""
_COUNTED = re.compile(
    r"(?:^|[_.-])(?:MAX|MIN|NUM|PER|TOTAL|EVERY|EACH|LAST|FIRST|NEXT|EOS|BOS|PAD|UNK|SEP|CLS|STOP|MASK|END|START|SPECIAL"
    r"|IMAGE|VIDEO|AUDIO|THINK)[_.-]?TOKEN$"
    r"|(?:^|[_.-])(?:PUBLIC|SORT|PRIMARY|FOREIGN|PARTITION|LABEL|INPUT|OUTPUT|PROMPT|ANSWER|METADATA|CACHE|HEADER|GROUP"
    r"|INDEX|STICKY[_.-]PGO|ROUTING|DICT|JSON|CONFIG)[_.-]?KEY$"
    r"|^(?:OLD)?PWD$"
)
"""names that end as one of a secret does, and are of tokens of texts, keys of mappings and directories"""
_PLAIN = re.compile(
    r"(?i:|0|1|true|false|yes|no|on|off|none|null)|(?:/[\w.@-]+){2,}/?|\$(?:\w+|\(\w+\)|\{\w+\})|" + re.escape(HIDDEN)
)
"""values of such names that are no secrets: switches, files, other variables"""
_QUERY = (
    r"(?:[A-Za-z0-9]*[_.-])*(?:[A-Za-z]*token|(?:api|access|secret|auth)?key|secret|password|passwd|sig|signature|auth)"
)
WITH_SECRET = re.compile(rf"(?i:[a-z][a-z0-9+.-]*://(?:[^/?#]*@.*|[^?#]*[?](?:[^#]*&)?{_QUERY}=[^&#].*))")
"""a URL with a user or password, or with a token among its parameters"""
_FORMS = re.compile(
    r"(?i:(?:bearer|basic)\s+[\w.~+/=-]{6,})|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b(?:hf_|sk-|gh[pousr]_|glpat-|xox[abprs]-|github_pat_)[\w-]{12,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
)
_MARKS = ("bearer", "basic", "private key-----", "akia", "asia", "hf_", "sk-", "glpat-", "github_pat_", "xox")
_MARKS_OF_GITHUB = ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")
"""each of these forms has one of these marks, folded. To look for them first takes a hundredth of the time, and a
manifest can have a megabyte of variables"""
_MARKS_OF_URLS = ("://", "?", "&")
_IN_URL = re.compile(
    rf"(?i)(?P<begin>\b[a-z][a-z0-9+.-]{{0,20}}://)(?:[^/?#\s\"'@]*@)|(?P<query>[?&]{_QUERY}=)[^&#\s\"']+",
)
_WORDS = re.compile("[_-]")
"""in names of variables and arguments, and in no field's"""
MOST_LOOKED_AT = 10_000
"""of a text [characters]: a longer text is not a token"""
MOST_OF_ALL = 200_000
"""of all variables of a manifest together, shared out evenly [characters]; a manifest can have a megabyte of them"""


def names_secret(name: str) -> bool:
    """Return whether a variable is named like a secret: `HF_TOKEN`, `aws_secret_access_key`, `PGPASSWORD`."""
    upper = _ENDS.sub("", name[-MOST_LOOKED_AT:].upper())
    return _NAME.search(upper) is not None and _COUNTED.search(upper) is None


def holds_secret(text: str, most: int = MOST_LOOKED_AT) -> bool:
    """Return whether a text has the form of a secret, or holds one: a bearer token, a URL with a password.

    It is looked at to its first `most` characters.
    """
    looked_at = text[:most]
    folded = looked_at.casefold()
    return (any(mark in folded for mark in (*_MARKS, *_MARKS_OF_GITHUB)) and _FORMS.search(looked_at) is not None) or (
        any(mark in folded for mark in _MARKS_OF_URLS) and _IN_URL.search(looked_at) is not None
    )


def is_secret(name: str, value: str, most: int = MOST_LOOKED_AT) -> bool:
    """Return whether a variable with this value keeps a secret where it stands; `most` is as in `holds_secret`."""
    return holds_secret(value, most) or (names_secret(name) and _PLAIN.fullmatch(value) is None)


def secret_names(variables: Mapping[str, object]) -> Iterator[str]:
    """Yield the names of the variables whose texts are secrets."""
    most = min(MOST_LOOKED_AT, MOST_OF_ALL // max(1, len(variables)))
    return (name for name, value in variables.items() if isinstance(value, str) and is_secret(name, value, most))


def without_values(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest for people: without the values of environment variables, passwords of URLs, and tokens."""
    return {key: _without(key, value) for key, value in manifest.items()}


def _without(key: str, value: Any) -> Any:
    match value:
        case Mapping() if key == "env":
            return {name: HIDDEN if isinstance(each, str) else _without(name, each) for name, each in value.items()}
        case Mapping():
            hides = isinstance(value.get("name"), str) and isinstance(value.get("value"), str)
            return {name: HIDDEN if hides and name == "value" else _without(name, each) for name, each in value.items()}
        case list() | tuple():
            return [_without(key, each) for each in value]
        case str() if _FORMS.search(value[:MOST_LOOKED_AT]) or (_WORDS.search(key) and is_secret(key, value)):
            return HIDDEN
        case str():
            return _IN_URL.sub(_masked, value) if "://" in value else value
        case _:
            return value


def _masked(found: re.Match[str]) -> str:
    return f"{found['begin']}{HIDDEN}@" if found["begin"] else f"{found['query']}{HIDDEN}"
