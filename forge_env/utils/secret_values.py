"""Which settings are secrets, and where they may be written.

`masked` is applied to settings before they go to a file, a sink or a screen, and `masked_text` to sentences. `keep`
writes what was masked to a file that only its owner reads, and `with_secrets` reads it back.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.utils.atomic import replace_file

HIDDEN = "[secret-not-written]"
"""Stands for a secret in files and sentences."""
FILE = "secrets.json"
"""The file of `keep`: a list of [path, value], readable for its owner only."""
_SHORTEST = 6  # a shorter value is masked where it stands, but not in sentences, which it would garble

_SECRET = re.compile(
    "[a-z]*passwords?|passwd|passphrase|passcode|passkey|pwd?|pin|t?otp|pat|mnemonic|secrets?|credentials?|creds?|"
    "authorization|bearer|cookies?|jwt|dsn|"
    "apikeys?|secretkey|privatekey|accesskey|authkey|authtoken|accesstoken|apitoken"
)
_ACCESS = re.compile("api|access|auth|secret|private|bearer|refresh|session|encryption|signing|ssh")
"""Before "keys" and "tokens", which mean other things without it."""
_OF_DATA = re.compile(
    "answer|any|audio|by|cache|chosen|column|config|data|dataset|dict|each|example|field|fn|foreign|function|group|hot|"
    "id|idempotency|image|index|input|item|json|label|lookup|main|map|messages?|metric|name|output|partition|primary|problem|"
    "prompt|public|query|question|record|rejected|response|reward|row|sample|score|short|solution|sort|state|target|task|"
    "text|tool|value|video"
)
"""Before "key": a column, or the key of a table."""
_OF_TEXT = re.compile(
    "begin|bos|boundary|call|cls|completion|each|end|eos|extra|first|image|input|last|mask|max|min|new|next|num|"
    "output|pad|per|prompt|reserved|sep|special|start|stop|think|thinking|thought|total|unk"
)
"""Before "token": a piece of text."""
_USERS = re.compile("admin|db|database|email|ftp|mail|my|mysql|pg|postgres|proxy|redis|root|smtp|user")
"""Before "pass"; other passes are over data."""
_FORMS = ("base", "der", "hex", "id", "pem")
"""Behind "key": its form, as in private_key_pem."""
_AUTH = ("auth", "authentication", "login")
_LOGIN = re.compile(r"[^:/=\s]+:[^/\s]+")
"""A user and a password, as the value of a setting `auth`, which may also say how."""
_SCHEME = re.compile(r"(?i:token|key|api-?key|bearer|basic|digest|hmac) \S+")
"""Of a header that may have any name."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_REFERENCE = re.compile(r"(?:\w+ )?\$(?:\{\w+\}|\w+)")
_PARAMETERS = {"key", "sig", "signature"}
"""Parameters of a URL that are secrets, though settings of these names are none."""

_COMMAND = (
    r"\bcurl\b[^\n]{0,500}? (?:-u|--user|--proxy-user)[ =]['\"]?(?P<curl>[^\s:'\"]+:[^\s'\"]+)"
    r"|\b(?:(?:mysql|mariadb)[\w-]*|7z)\b[^\n]{0,500}? -p(?P<joined>[^\s'\"]+|'[^']+'|\"[^\"]+\")"
    r"|\b(?:(?:sshpass|mongo\w*|docker login)\b[^\n]{0,500}? -p|redis-cli\b[^\n]{0,500}? -a|ldap\w+[^\n]{0,500}? -w)"
    r" ?(?P<apart>[^\s'\"]+|'[^']+'|\"[^\"]+\")"
)
"""Programs that take a secret by a letter."""
_ANYWHERE = re.compile(
    r"(?<![\w+.-])[a-zA-Z][\w+.-]*://(?P<user>[^\s/?#'\"]+)(?=@)"
    r"|(?P<name>(?<=[?&#])[\w.-]+)=(?P<parameter>[^\s&#'\"]+)"
    r"|\b(?:Bearer|bearer(?= \S*\d)) (?P<bearer>(?!(?:[a-z]+|[A-Z_]+)(?![\w+/~=-]|\.\w))[\w+/.~=-]{4,})"
    r"|\bBasic (?P<basic>[\w+/]{6,}=*)"
    r"|\bToken (?P<token>(?=[\w-]*\d)(?=[\w-]*[a-zA-Z])[\w+/.~=-]{8,})"
    r"|(?<![\w-])[A-Za-z]\w*-[\w-]+: (?i:token|key|api-?key|digest|hmac) (?P<scheme>[^\s'\"]+)"
    rf"|{_COMMAND}"
    r"|(?<![\w/@.+-])(?P<login>(?!(?:mailto|openai):)[\w.+-]*[a-zA-Z][\w.+-]*:[^\s:@/]{3,})(?=@(?!https?://|sha256:)"
    r"(?:localhost|\d+(?:\.\d+){3}|[a-zA-Z][\w-]*(?:\.[\w-]+)*\.[a-zA-Z]{2,}|[a-zA-Z][\w-]*(?=[:/]))(?![\w@]))"
    r"|(?<![\w-])(?P<known>sk-(?=[\w-]*\d)[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{20,}|glpat-[\w-]{16,}"
    r"|(?:gsk|npm|r8|[rs]k_live|lin_api|dop_v1|wandb_v1|lsv2_[ps][tk]|dckr_pat|whsec)_(?=\w*\d)\w{20,}|ya29\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|(?:xai|nvapi|pplx|tvly|pypi|xapp)-(?=[\w-]*\d)[\w-]{20,}"
    r"|(?<=hooks\.slack\.com/services/)[\w/]{20,}|(?<=discord\.com/api/webhooks/)[\w/-]{20,}|bot\d{6,10}:[\w-]{30,}"
    r"|xox[abprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\s)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))"
)
"""What is a secret by its form: parts of URLs, headers, and keys with the marks of their issuers."""
_LINE = re.compile(
    r"^[ \t]*(?:- )*['\"]?(?P<name>[A-Za-z][\w.-]*)['\"]?(?: ?:[ \t]+| = ?|:(?=\n[ \t]*- ))"
    r"(?P<value>'[^'\n]+'|\"[^\"\n]+\"|[|>][-+]?(?:\n[ \t]+[^\n]*)+|(?:\n[ \t]*- [^\n:]+)+|[^\n#]*[^\s#])"
    r"[ \t]*(?:#.*)?$",
    re.MULTILINE,
)
_YAML = re.compile(r"(?:[ \t]*(?:(?:- )*[\w.'\"-]+:(?:[ \t].*)?|- .*|#.*|---)?\n)+[ \t]*(?:- )*[\w.'\"-]+:.*")
_BY_NAME = (
    re.compile(r"(?<![\w.-])-{0,2}(?P<name>[A-Za-z_][\w.-]*)=(?P<value>'[^']+'|\"[^\"]+\"|[^\s&;,'\"]+)"),
    _LINE,
    re.compile(r"(?<![\w-])(?P<name>[A-Za-z]\w*-[\w-]+|(?i:authorization|cookie(?=.*=))): *(?P<value>[^'\"\n]+)"),
    re.compile(r"(?<![\w.-])(?P<name>[A-Za-z_][\w-]*)['\"]?\]?\s*[:=]\s*(?P<value>'[^'\n]+'|\"[^\"\n]+\")"),
    re.compile(r"\bname: ['\"]?(?P<name>[A-Za-z][\w-]*)['\"]?\s+value: +(?P<value>'[^']+'|\"[^\"]+\"|[^\s'\"]+)"),
    re.compile(r"(?<=[{ ])(?P<name>[A-Za-z_][\w-]*): (?P<value>[^\s,{}'\"]+)(?=[^{}\n]*\})"),
    re.compile(r"(?<![\w-])--?(?P<name>[A-Za-z][\w-]*) +(?P<value>(?!-)(?:'[^']+'|\"[^\"]+\"|[^\s'\"]+))"),
)
"""A secret by the name before it: NAME=VALUE, a line of YAML, a header, an entry of a dictionary, and --NAME VALUE."""
_secrets: set[str] = set()
"""The secrets of this process, for its sentences."""


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret.

    >>> [name for name in ("api_key", "hfToken", "max_tokens", "answer_key", "key") if is_secret_name(name)]
    ['api_key', 'hfToken']
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if words[-2:-1] == ["key"] and words[-1] in _FORMS:
        del words[-1]
    *before, last = words or [""]
    of = before[-1] if before else ""
    if last in ("key", "token"):
        return bool(of or last == "token") and not (_OF_DATA if last == "key" else _OF_TEXT).fullmatch(of)
    before_it = {"keys": _ACCESS, "tokens": _ACCESS, "pass": _USERS}.get(last)
    return bool(_SECRET.fullmatch(last) or (before_it and before_it.fullmatch(of)))


def masked(value: Any, path: Sequence[Any] = ()) -> Any:
    """Settings without secrets: `HIDDEN` stands for each, or for the part of a text that is one.

    Names of environment variables, and "${NAME}", are not secrets.

    Args:
        value: plain data: dictionaries, lists, texts and numbers.
        path: the names and indices that lead to it.
    """
    names = [name for name in path if isinstance(name, str)]
    is_auth = bool(names) and names[-1].lower().endswith(_AUTH)
    if isinstance(value, Mapping):
        parents: Any = {"value": (value.get("name"),)}  # {"name": "Authorization", "value": ...}
        if is_auth:  # {"type": "bearer", "value": ...}
            parents = dict.fromkeys(("value", "key"), ("password",))
        without = {key: masked(item, (*path, *parents.get(key, ()), key)) for key, item in value.items()}
        has_secret = any(_masked_setting(key) != key for key in value if isinstance(key, str))
        return {HIDDEN: HIDDEN} if has_secret else without
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, str) for item in value):  # the words of a command
            for match in re.finditer(_COMMAND, " ".join(value)):
                secret = match[match.lastgroup or 0]
                value = [item[: -len(secret)] + _hide(secret) if item.endswith(secret) else item for item in value]
        return [masked(item, (*path, *_name_before(value, i, path), i)) for i, item in enumerate(value)]
    if isinstance(value, str) and value and HIDDEN not in value:
        is_header = any(name.lower() in ("header", "headers") for name in names)
        is_login = (is_auth and (is_header or _LOGIN.fullmatch(value))) or (is_header and _SCHEME.fullmatch(value))
        if is_login or any(map(is_secret_name, names)):
            return value if _is_reference(value) else _hide(value)
        return _masked_setting(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return HIDDEN if is_number and names and is_secret_name(names[-1]) else value


def masked_text(text: str) -> str:
    """A sentence without what is a secret by its form, and without the secrets that `masked` has met."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _ANYWHERE.sub(lambda match: _hide_match(match, lambda secret: HIDDEN), text)


def keep(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the secrets among settings to the folder's `FILE`, which only its owner reads; without any, remove it."""
    values = [(path, reduce(getitem, path, settings)) for path in _hidden(masked(settings))]
    secrets = [(path, value) for path, value in values if HIDDEN not in str(value)]
    if secrets:
        replace_file(folder / FILE, json.dumps(secrets, default=str) + "\n", mode=0o600)
    else:
        (folder / FILE).unlink(missing_ok=True)


def with_secrets(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Settings with the secrets that a folder's `FILE` holds; those that it does not hold stay `HIDDEN`."""
    data: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    try:
        secrets = json.loads((folder / FILE).read_text(encoding="utf-8"))
        for (*path, last), value in secrets:
            place: Any = data
            for part in path:
                place = place[part] if isinstance(place, list) or part in place else {}
            if HIDDEN in str(place[last] if isinstance(place, list) else place.get(last)):
                place[last] = value
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{folder / FILE} cannot be read: {error}; remove it, and give the secrets again") from None
    return data


def check_present(settings: Mapping[str, Any], give: str) -> None:
    """Check that no secret among settings is missing; sentences of this process do not repeat those that are there.

    Args:
        give: how a setting is given, with {} for its name.
    """
    masked(settings)
    missing = [".".join(map(str, path)) for path in _hidden(settings)]
    if missing:
        raise UserError(
            f"secrets were not written down, and no {FILE} of the run holds them: {', '.join(missing)}; give them "
            f"again, {give.format(missing[0])}"
        )


def _name_before(items: Sequence[Any], number: int, path: Sequence[Any]) -> Sequence[str]:
    """The name before an item that may be its value: ["--api-key", VALUE], and a header or a login as a pair."""
    name, is_pair = items[number - 1], len(items) == 2 and number == 1
    if not number or not isinstance(name, str) or not isinstance(items[number], str):
        return ()
    if is_pair and path and str(path[-1]).lower().endswith("auth") and re.fullmatch(r"[\w.@+-]+", name):
        return ("password",)
    is_option = name.startswith("-") and not items[number].startswith("-")
    return (name,) if is_option or (is_pair and "headers" in path) else ()


def _hidden(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of what is hidden among settings."""
    is_whole = isinstance(value, Mapping) and HIDDEN in value
    if isinstance(value, Mapping | list | tuple) and not is_whole:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _hidden(item, (*path, key))
    elif HIDDEN in str(value):
        yield path


def _masked_setting(text: str) -> str:
    """The text of a setting, which may be JSON, a header or a command line."""
    if text.lstrip().startswith(("{", "[")):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if data is not None:
            without = masked(data)
            return text if without == data else json.dumps(without)
    text = _ANYWHERE.sub(lambda match: _hide_match(match, _hide), text)
    for pattern in _BY_NAME:
        text = pattern.sub(_hide_named, text)
    return text


def _is_reference(value: str) -> bool:
    """Whether a text names environment variables in the place of a secret."""
    return (value.isidentifier() and value in os.environ) or bool(_REFERENCE.fullmatch(value))


def _is_login(text: str) -> bool:
    """Whether a text is the base64 of USER:PASSWORD."""
    try:
        return ":" in base64.b64decode(text, validate=True).decode()
    except ValueError:
        return False


def _hide(secret: str) -> str:
    lines = [line.strip(" \t'\"|>-") for line in secret.splitlines() if "PRIVATE KEY" not in line]
    _secrets.update(part for part in (secret, *lines) if len(part) >= _SHORTEST and part not in HIDDEN)
    return HIDDEN


def _hide_match(match: re.Match[str], hide: Callable[[str], str]) -> str:
    if name := match["name"]:
        is_secret = is_secret_name(name) or re.sub("^x-(amz|goog)-", "", name.lower()) in _PARAMETERS
        return f"{name}={hide(match['parameter'])}" if is_secret and HIDDEN not in match[0] else match[0]
    secret = match[match.lastgroup or 0]
    if match["user"] == "git" or HIDDEN in secret:  # git is the user of ssh
        return match[0]
    if match["basic"] and not _is_login(secret):
        return match[0]
    hide(secret.partition(":")[2] if match["user"] or match["login"] or match["curl"] else secret)
    return _without_group(match, match.lastgroup or 0)


def _hide_named(match: re.Match[str]) -> str:
    value, name = match["value"], match["name"]
    if HIDDEN in value or not is_secret_name(name) or _is_reference(value.strip("'\"")):
        return match[0]
    if match.re is _LINE and not _is_line_of_settings(name, value, match.string.strip()):
        return match[0]
    _hide(value)
    return _without_group(match, "value")


def _is_line_of_settings(name: str, value: str, text: str) -> bool:
    """Whether a line NAME: VALUE of a text is one of settings, and no sentence such as "token: text"."""
    if name.isalpha() and value.isalpha() and (name[0].isupper() or "\n" not in text):
        return False
    return value[0] in "'\"|>\n" or not re.search(r"\s", value) or bool(_YAML.fullmatch(text))


def _without_group(match: re.Match[str], group: str | int) -> str:
    start, end = (place - match.start() for place in match.span(group))
    return match[0][:start] + HIDDEN + match[0][end:]
