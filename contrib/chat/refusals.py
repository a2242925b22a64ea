"""Which refusals of an endpoint mean a full context: in the words of its maker, and never a limit of the account.

README.md says what each means. contrib/chat/tests/test_endings.py has the texts of the makers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_CODES = {
    "context_length_exceeded", "context_window_exceeded", "exceed_context_size_error", "prompt_too_long",
    "request_too_large", "tokens_limit_reached",
}  # fmt: skip
_ACCOUNT = {"402", "429"}
"""Codes of a limit of the account, as the status or in the body."""
_WORDS = (
    "code", "type", "message", "msg", "error_msg", "status_msg", "detail", "error", "errors", "reason", "metadata",
    "raw", "base_resp", "innererror",
)  # fmt: skip
"""Where errors have their words. Other fields may repeat what was sent."""
_LIMITED = re.compile(
    r"(?<!gene)rate[ _-]?(limit|exceed)|(per|last|this|next)[ _-]?(\d+ ?)?(sec|min|hour|day|week|month)|"
    r"/ ?(sec|min|hour|day)|\b[tr]p[smdh]\b|throttl|too many requests|quota|please (wait|slow)|slow down|"
    r"try again (in|later)|retry (after|soon|with)|today|hourly|daily|weekly|monthly|resets? (at|in|on)|overloaded|"
    r"\bbusy\b|waiting to be|concurren|in flight|queue|free[ -]tier|credit|balance|\bcosts?\b|spend|"
    r"organi[sz]ation|account|budget|billing|api[ _-]?key|your (plan|tier|project)|每[日天月分秒]|频率|频繁|并发|"
    r"稍后|配额|额度|余额|kv[ _-]?cache\b[^.]{0,20}(full|exhausted|busy)|out of kv|"
    r"time[ds]?[ -]?out",
    re.IGNORECASE,
)
"""A limit of the account, or a server that is busy, whatever else the text says."""
_MISSET = re.compile(
    r"supports at most \d+ (completion|output) tokens|maximum (allowed )?number of output tokens|"
    r"(valid|supported) range (of max_\w*tokens )?is|max_\w*tokens\W* is too (large|high)(?!.*context)|"
    r"(?<!\+ )(?<!\+ `)(?<!and )(?<!and `)(?<!plus )max_\w*tokens\b[^.]{0,30}? "
    r"(must|cannot|should|exceeds?|is (above|greater|larger|more|over))\b|"
    r"(?<!\+ )(?<!and )(?<!and the )(?<!or )(?<!plus )\b"
    r"(answer|completion|output|response)( length| tokens?)? exceeds?\b|"
    r"(?<!content': )(?<!input': )string too long|\bper (file|image|page)\b|too many (files|images|tools)|"
    r"exceeds? [^.]{0,20}\d (documents|files|images|pages|tools)\b|"
    r"(access|auth\w*|bearer|stop) tokens?\b|web ?socket|"
    r"\b(audio|document|enum|file|grammar|id|image|name|page|pdf|picture|schema|template|tool|video)s?\b(?! and text)"
    r"[^.:;]{0,30}?"
    r"(too (big|large|long)|exceeds?\b)(?![^.]*token)",
    re.IGNORECASE,
)
"""Another part of the request is wrong, often its limit of the answer: a mistake of a setting."""
_FULL = re.compile(
    r"max(imum)?[ _](allowed )?(context|prompt|model|input|message|seq(uence)?)[ _](len|size|window|limit|tokens|char)|"
    r"exceed\w* the max(imum)? (allowed )?number of (input |prompt )?tokens|configured context|range of input length|"
    r"(than|exceed\w*) (the |this |its |your |available |or equal to |max\w* |model[’']?s? |[\d,]+[ -]tokens? )*"
    r"(context|(model )?token limit)|more than max tokens|max tokens of [\d,]+ exceeded|max size: \d+ tokens|"
    r"context[_ -]?(window|length|size|limit)?[ _]?(is |of |of [\d,]+( tokens)? |has been |was )?"
    r"(exceed|full|only|overflow)|"
    r"context[_ -]?(window|length|size)?[ _]?(is |was )?too (long|large|small)|"
    r"\bfit [^.]{0,30}?(in|into|within) (the|this|its) .{0,20}context|tokens? (do|does|did|will|would) not fit\b|"
    r"context[_ -]?(window|length|size|limit) (is|of) (only )?[\d,]+( tokens)?,? but (the|this|your) (conversation|"
    r"input|messages?|prompt|request)|(prompt|inputs?|conversation|sequence|request) (is|are) (longer|larger) than "
    r"[^.]{0,40}?(tokens|context|model)|(conversation|inputs?|messages?|prompt|request) (has|have|is|contains?) "
    r"[\d,]+ tokens( long)?[,.;:]? \(?((and|but|its|the|this|your) )*(model[’']?s? )?(limit|max\w*)\b|"
    r"[\d,]+ tokens exceed\w* (the |its )?(max\w*|limit)|"
    r"(conversation|input|message|prompt|request|sequence|total)(_|\w*\b[^.]{0,40}?)(length|long|tokens?)\b[^.]{0,40}?"
    r"(?<!must be )(?<!must have )(above|but (the|this) (limit|max\w*|model)|exceeds?|over|>|"
    r"(greater|larger|longer|more) than) [^.]{0,40}?(\d|context|limit|max)|"
    r"(length|tokens?) (in|of) ((the|this|your) )?(conversation|input|messages?|prompt|request)\b[^.]{0,20} "
    r"(above|exceeds?|(greater|larger|longer|more) than|over) [^.]{0,20}?(\d|context|limit|max|model)|"
    r"exceed\w* (the|its|this) (max\w*|limit) of [\d,]+ (input |prompt )?tokens|token limit( of [\d,]+)? exceeded|"
    r"(prompt|inputs?|messages?|conversation)\b.{0,40}?(?<!took)(?<!taking) too (long|large)|"
    r"too many (input |prompt |total |total text )?(tokens|bytes)|"
    r"(prompt|input|requested|message|sequence|total|number of) (length|size|token)[\w\s(),.]* exceeds?\b|"
    r"(prompt|inputs?|messages|conversation|token count) exceeds?\b|>= n_ctx|"
    r"inputs`? (must have less than|tokens \+ )|"
    r"reduce (the (length|number of tokens) (of|in) )?(the|your) (messages|prompt|input)|"
    r"context limit exceeded|request too large|request (payload )?size exceeds|text fields that are too large|"
    r"model supports (a maximum of|at most|only|up to) [\d,]+ ((context|input|prompt|total) )?tokens|"
    r"expected maxlength|"
    r"上下文.{0,8}超|超[过出]了?(模型)?最大|(prompt|输入|token).{0,8}超[长过出]",
    re.IGNORECASE,
)
_WINDOW = re.compile(r"(?:context length (?:is|of)(?: only)?|must be <=) ([\d,]+)", re.IGNORECASE)
_ASKED = re.compile(
    r"([\d,]+) (?:(?:tokens )?(?:in|for) the (?:completion|output)|output tokens|`max_new_tokens`)|"
    r"too large: ([\d,]+)",
    re.IGNORECASE,
)


def says_context_full(data: Any, status: int = 400) -> bool:
    """Whether a refusal is about the length of the conversation."""
    words = list(_words(data))
    text = " ".join(" ".join(words).split())[:20_000]
    is_limit = not _ACCOUNT.isdisjoint((str(status), *words)) or _LIMITED.search(text)
    if (is_limit or _MISSET.search(text) or not _FULL.search(text)) and _CODES.isdisjoint(words):
        return False
    window, size = _WINDOW.search(text), _ASKED.search(text)
    # An answer as long as the window leaves no room for any conversation: that is a setting, too.
    return window is None or size is None or _number(size[1] or size[2]) < _number(window[1])


def _number(text: str) -> int:
    return int(text.replace(",", "") or 0)


def _words(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts of an error, those within wrappers too."""
    if isinstance(value, (str, int)):
        yield str(value)
    elif isinstance(value, list) and depth < 8:
        for item in value:
            yield from _words(item, depth + 1)
    elif isinstance(value, dict) and depth < 8:
        for name in _WORDS:
            yield from _words(value.get(name), depth + 1)
