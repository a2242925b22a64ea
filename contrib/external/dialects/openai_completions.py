"""OpenAI's Completions: a plain prompt, of text or of token ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.external.dialects.dialect import Histories
from contrib.external.dialects.fields import Fields, refuse
from contrib.external.dialects.openai_format import OpenAIFormat, check_body, common, ignored_names, text_of_token
from contrib.external.requests import ProgramRequest, whole_number
from contrib.external.responses import ProgramReply


class OpenAICompletions(OpenAIFormat):
    path = "/v1/completions"
    kind = "text_completion"
    fields = Fields.of("openai_completions")

    def read(self, body: Any, histories: Histories) -> ProgramRequest:
        body = check_body(body, self.fields)
        refuse(body, "best_of", body.get("best_of") not in (None, 1), "one answer is sampled")
        wants = body.get("logprobs")
        refuse(body, "logprobs", wants, "only the sampled tokens' own logprobs are kept, which 0 asks for")
        return ProgramRequest(
            prompt=_prompt(body.get("prompt")),
            logprobs=wants == 0 and wants is not False,
            ignored=ignored_names(body, self.fields),
            **common(body),
        )

    def body(self, reply: ProgramReply, request: ProgramRequest) -> dict[str, Any]:
        [(content, finish_reason)] = self.pieces(reply)
        choices = [self.choice(content, finish_reason)]
        return {**self.head(reply, request), "choices": choices, "usage": reply.usage}

    def pieces(self, reply: ProgramReply) -> Iterator[tuple[dict[str, Any], str | None]]:
        yield {"text": reply.message["content"], "logprobs": _logprobs(reply)}, reply.finish_reason


def _logprobs(reply: ProgramReply) -> dict[str, Any] | None:
    if not reply.logprobs:
        return None
    texts = [text_of_token(text) for text, _ in reply.logprobs]
    offsets = list(itertools.accumulate(map(len, texts), initial=0))[:-1]
    values = [logprob for _, logprob in reply.logprobs]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        (value,) = value
    if isinstance(value, str) and value:
        return value
    tokens = [whole_number(token) for token in value] if isinstance(value, list) else []
    if tokens and all(type(token) is int and token >= 0 for token in tokens):
        return tuple(tokens)
    raise RequestRefused(400, "prompt is one text or one list of token ids, and not empty", param="prompt")
