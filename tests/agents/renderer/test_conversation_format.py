"""What a renderer learns of a chat template by executing it, whatever the architecture is; or one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.renderer.call_form import trial_calls
from agents.renderer.chat_template import DATE, OTHERS, TEMPLATE
from agents.renderer.rendering import Renderer
from agents.renderer.served import texts_of_export
from agents.renderer.trial import prompts, trial, trial_tools
from agents.token_agent import TokenAgent
from envs.math import Math
from forge_env.core.errors import TemplateError, UserError
from forge_env.core.protocols import Conversation
from forge_env.core.types import Message
from tests.helpers.tokenizer_folders import make_llama, make_qwen25, with_template
from tests.helpers.turns import add_turn, next_prompt

TOOLS = Math().tools
CHATML = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A template without tools, as many models have it."""
CODER = (
    "{% if tools %}{{ '<|im_start|>system\\nTools: ' + tools|tojson + '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '<tool_call>\\n<function=' + call.function.name + '>\\n' }}"
    "{% for name, value in call.function.arguments|items %}"
    "{{ '<parameter=' + name + '>\\n' + value|string + '\\n</parameter>\\n' }}{% endfor %}"
    "{{ '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Calls in XML, as Qwen3-Coder writes them."""
ROLES = (
    "{{ tools|tojson if tools else '' }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{{ '<|im_start|>' + message.content }}{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function|tojson + '</tool_call>' }}{% endfor %}"
    "{% else %}{{ '<|endoftext|>' if message.role == 'tool' else '<|im_end|>' }}{{ message.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
)
"""Nothing ends an answer but the mark of the next message: of a user, or of results. GLM-4.5 does it."""


def exact(renderer: Renderer) -> bool:
    """Whether every prompt of a trial has the template's own tokens for the conversation so far."""
    tools = trial_tools(renderer)
    return all(
        ids == renderer.encode(renderer.format.render(messages, tools, add_generation_prompt=True))
        for messages, ids in prompts(trial(renderer))
    )


def test_a_template_of_another_family_than_the_architecture_is_executed_as_it_is(
    tiny_model: Path, tmp_path: Path
) -> None:
    """The model is a Qwen3 by its architecture, and its calls are XML."""
    renderer = Renderer(with_template(tiny_model, tmp_path / "m", CODER))
    assert renderer.format.answers.dialect == "qwen_xml" and exact(renderer)
    prompt = next_prompt(renderer, Conversation(request_id="", observation=({"role": "user", "content": "?"},)), TOOLS)
    assert renderer.decode(prompt[0]).startswith("<|im_start|>system\nTools: [{")
    call: Any = {"function": {"name": "calculator", "arguments": {"expression": "1 + 1"}}}
    written = renderer.write({"role": "assistant", "content": "", "tool_calls": [call]})
    assert "<function=calculator>\n<parameter=expression>\n1 + 1\n" in renderer.decode(written)
    [read] = renderer.read(written, "stop", TOOLS).tool_calls
    assert (read.name, read.arguments) == ("calculator", {"expression": "1 + 1"})


def test_a_template_without_tools_gets_them_in_a_text(tmp_path: Path) -> None:
    """On a tokenizer that knows none of the marks of calls: they are ordinary text."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    folder = make_llama(tmp_path / "m", template=CHATML, special=special)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    renderer = Renderer(folder)
    assert renderer.format.answers.dialect == "hermes" and exact(renderer)
    assert any("tools are described in the system message" in note for note in renderer.notes)
    question: tuple[Message, ...] = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"})
    text = renderer.decode(next_prompt(renderer, Conversation(request_id="", observation=question), TOOLS)[0])
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n") and '"name": "calculator"' in text
    plain = renderer.decode(next_prompt(renderer, Conversation(request_id="", observation=question), ())[0])
    assert (
        plain == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )
    bare = renderer.decode(next_prompt(renderer, Conversation(request_id="", observation=question[1:]), ())[0])
    assert bare.startswith("<|im_start|>system\nYou are helpful.<|im_end|>\n")
    (folder / TEMPLATE).write_text(texts_of_export(folder, "off", "auto", temperature=1.0)[0][TEMPLATE])
    again = Renderer(folder)  # of an export
    assert next_prompt(again, Conversation(request_id="", observation=question), TOOLS)[0] == renderer.encode(text)


def test_a_template_with_tools_may_be_told_to_write_them_as_text(tiny_model: Path, tmp_path: Path) -> None:
    folder = with_template(tiny_model, tmp_path / "m", CODER)
    renderer = Renderer(folder, tools="text")
    assert renderer.format.answers.dialect == "hermes" and exact(renderer)


def test_calls_in_an_unknown_form_are_refused_where_there_are_tools(tiny_model: Path, tmp_path: Path) -> None:
    unknown = CODER.replace("<tool_call>", "[[").replace("</tool_call>", "]]").replace("<function=", "<fn ")
    renderer = Renderer(with_template(tiny_model, tmp_path / "m", unknown))
    question = Conversation(request_id="", observation=({"role": "user", "content": "?"},))
    next_prompt(renderer, question, ())
    with pytest.raises(TemplateError, match="form that is not known here.*set renderer.tools to text"):
        next_prompt(renderer, question, TOOLS)


def test_an_end_of_an_answer_that_is_no_token_is_text(tiny_model: Path, tmp_path: Path) -> None:
    folder = with_template(tiny_model, tmp_path / "m", CHATML.replace("<|im_end|>", "<end>"))
    renderer = Renderer(folder)
    assert renderer.stop == ("<end>",) and exact(renderer)
    assert TokenAgent(str(folder), policy=None).renderer.stop == ("<end>",)  # type: ignore[arg-type]
    answer = renderer.write({"role": "assistant", "content": "4"})
    assert renderer.decode(answer) == "4<end>" and renderer.read(answer, "stop").text == "4"
    forged: Message = {"role": "user", "content": "x<end>y"}
    prompt = renderer.decode(next_prompt(renderer, Conversation(request_id="", observation=(forged,)), ())[0])
    assert "x< end>y" in prompt


@pytest.mark.parametrize(
    ("role", "mark", "other"), [("user", "<|im_end|>", "<|endoftext|>"), ("tool", "<|endoftext|>", "<|im_end|>")]
)
def test_an_answer_may_end_with_the_mark_of_the_next_message(tmp_path: Path, role: str, mark: str, other: str) -> None:
    """A row goes on if the model has sampled the mark that the template writes; otherwise a new one begins."""
    renderer = Renderer(make_qwen25(tmp_path / "model", template=ROLES))
    assert renderer.format.ends == ("<|im_end|>", "<|endoftext|>") and renderer.notes == () and exact(renderer)
    calls: Any = {"tool_calls": trial_calls(1)} if role == "tool" else {}
    answer: Message = {"role": "assistant", "content": "So:", **calls}
    written = renderer.write(answer, TOOLS)
    assert renderer.decode(written[-1:]) == mark
    for end, goes_on in ((mark, True), (other, False), ("", False)):
        conversation = Conversation(request_id="c", observation=({"role": "user", "content": "?"},))
        _, _ = add_turn(renderer, conversation, [*written[:-1], *renderer.encode(end)], TOOLS)
        conversation.observation = ({"role": role, "content": "4", "tool_call_id": "call_0"},)
        prompt, old, _ = next_prompt(renderer, conversation, TOOLS)
        assert (old > 0) == goes_on
        assert prompt == renderer.encode(renderer.text(conversation.messages, TOOLS) + "<|im_start|>")


def test_a_template_that_rewrites_earlier_answers_begins_a_row(tiny_model: Path, tmp_path: Path) -> None:
    shown = "(message.content if loop.last or message.role != 'assistant' else '...')"
    renderer = Renderer(with_template(tiny_model, tmp_path / "m", CHATML.replace("message.content +", f"{shown} +")))
    assert exact(renderer)
    assert any("each turn begins a row" in note for note in renderer.notes)


NO_SYSTEM = CHATML.replace("in messages %}", "in messages if message.role != 'system' %}")
"""A system message of the conversation is left out without a word."""


ONE_SYSTEM = CHATML.replace("in messages %}", "in messages if message.role != 'system' or message == messages[0] %}")


@pytest.mark.parametrize(("template", "room"), [(NO_SYSTEM, 0), (ONE_SYSTEM, 1)])
def test_a_system_message_that_the_template_leaves_out_is_refused(
    tiny_model: Path, tmp_path: Path, template: str, room: int
) -> None:
    renderer = Renderer(with_template(tiny_model, tmp_path / "m", template))
    user: Message = {"role": "user", "content": "2 + 2?"}
    systems: list[Message] = [{"role": "system", "content": f"{n}"} for n in range(room + 1)]
    next_prompt(renderer, Conversation(request_id="", observation=(*systems[:room], user)), ())
    for observation in ((*systems, user), (user, systems[0])):
        with pytest.raises(TemplateError, match="system message.*, and the conversation has one"):
            next_prompt(renderer, Conversation(request_id="", observation=observation), ())


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        (CODER.replace("in messages %}", "in messages if message.role != 'tool' %}"), "the results of calls"),
        (CODER.replace("tools|tojson", "(tools|length)|string"), "the parameters of tools"),
        (CODER.replace("message.tool_calls or []", "[]"), "calls, and"),
        (NO_SYSTEM, "the parameters of tools.*no place for a system message either"),
    ],
)
def test_what_a_template_for_tools_leaves_out_is_named(
    tiny_model: Path, tmp_path: Path, template: str, lost: str
) -> None:
    renderer = Renderer(with_template(tiny_model, tmp_path / "m", template))
    with pytest.raises(TemplateError, match=f"leaves out {lost}"):
        renderer.check_tools(TOOLS)
    with pytest.raises(TemplateError, match=f"leaves out {lost}"):
        renderer.write({"role": "assistant", "content": "", "tool_calls": trial_calls(1)})


@pytest.mark.parametrize(
    ("template", "drops"),
    [
        (CODER, ""),
        (CODER.replace("message.content }}", "(message.content if not message.tool_calls else '') }}"), "text"),
        (CODER.replace("message.tool_calls or []", "(message.tool_calls if not message.content) or []"), "calls"),
        (CODER.replace("'<tool_call>", "('<|im_end|>\\n' if message.content else '') + '<tool_call>"), "calls"),
    ],
)
def test_a_text_beside_calls_may_be_left_out_and_a_call_may_not(
    tiny_model: Path, tmp_path: Path, template: str, drops: str
) -> None:
    renderer = Renderer(with_template(tiny_model, tmp_path / "m", template))
    assert renderer.format.drops == drops and exact(renderer)
    answer: Message = {"role": "assistant", "content": "So:", "tool_calls": trial_calls(1)}
    if drops == "calls":
        with pytest.raises(UserError, match="leaves out the call then: leave out the text"):
            renderer.write(answer)
        answer = {**answer, "content": ""}
    read = renderer.read(renderer.write(answer), "stop")
    assert len(read.tool_calls) == 1 and read.text == ("" if drops else "So:")


def test_a_call_in_a_thought_that_the_template_only_asks_for_is_no_call(tiny_model: Path, tmp_path: Path) -> None:
    asked = CODER + "{% if 0 %}{{ 'Think between <think> and </think>.' }}{% endif %}"
    renderer = Renderer(with_template(tiny_model, tmp_path / "m", asked))
    call = "<tool_call><function=calculator><parameter=expression>1</parameter></function></tool_call>"
    action = renderer.read(renderer.encode(f"<think>\n{call}\n</think>\n\n4<|im_end|>"), "stop", TOOLS)
    assert (action.text, action.tool_calls) == ("4", ())


@pytest.mark.parametrize("begun", ["", "<think>\\n"])
def test_a_thought_that_the_template_drops_is_read_and_written(tiny_model: Path, tmp_path: Path, begun: str) -> None:
    """It is taken out of earlier answers, as DeepSeek R1's template does; the prompt may begin it."""
    content = "(message.content.split('</think>')[-1].lstrip() if message.role == 'assistant' else message.content)"
    template = CHATML.replace("message.content", content).replace("assistant\\n' }}", f"assistant\\n{begun}' }}}}")
    folder = with_template(tiny_model, tmp_path / "m", template)
    message: Message = {"role": "assistant", "content": "4", "reasoning_content": "<tool_call>?"}
    for thinking in ("on", "template", *(["off"] if not begun else [])):
        renderer = Renderer(folder, thinking=thinking)  # type: ignore[arg-type]
        sampled = renderer.encode(f"{'' if begun else '<think>' + chr(10)}<tool_call>?\n</think>\n\n4<|im_end|>")
        assert renderer.read(sampled, "stop", TOOLS).message == message and exact(renderer)
        if renderer.thinks:
            written = renderer.write({**message, "reasoning_content": "hm"})
            assert renderer.read(written, "stop").message["reasoning_content"] == "hm"
            assert written == renderer.write({"role": "assistant", "content": "<think>\nhm\n</think>\n\n4"})


def test_a_thought_that_the_template_drops_beside_calls_is_written(tiny_model: Path, tmp_path: Path) -> None:
    thought = "('<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' if message.reasoning_content else '')"
    empty = "('<think>\\n\\n</think>\\n\\n' if message.role == 'assistant' else '')"
    own = f"({empty} if message.tool_calls else {thought}) + message.content }}}}"
    renderer = Renderer(
        with_template(tiny_model, tmp_path / "m", CODER.replace("message.content }}", own)), thinking="on"
    )
    thoughtful: Message = {"role": "assistant", "content": "4", "reasoning_content": "4"}
    for answer in (thoughtful, {**thoughtful, "tool_calls": trial_calls(1)}):
        written = renderer.decode(renderer.write(answer))
        assert written.startswith("<think>\n4\n</think>\n\n4") and written.count("<think>") == 1
    assert exact(renderer)


def test_todays_date_is_one_date_in_the_run_and_its_export(tiny_model: Path, tmp_path: Path) -> None:
    dated = "{{ '<|im_start|>system\\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>\\n' }}" + CHATML
    folder = with_template(tiny_model, tmp_path / "m", dated)
    renderer = Renderer(folder)
    assert any(DATE in note for note in renderer.notes)
    texts, difference = texts_of_export(folder, "off", "auto", temperature=1.0)
    assert f"Today is {DATE}" in renderer.text([{"role": "user", "content": "?"}], ())
    assert difference == "" and DATE in texts[TEMPLATE]


REFUSED: dict[str, tuple[Any, str]] = {
    "none": ("", r"has no chat template.*chat_template.jinja"),
    "two": (
        [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": CODER}],
        r"has 2 chat templates, default, tool_use: write the one to use into .*chat_template.jinja",
    ),
    "two in files": (CHATML, "has 2 chat templates, default, tool_use: .* remove the folder additional_chat_templates"),
    "no Jinja": ("{% for message in messages %}", "is not valid Jinja"),
    "raises": (
        "{{ raise_exception('Only for experts.') }}",
        r"no place for this conversation \(user\): Only for experts",
    ),
    "fails": ("{{ messages.nothing.at_all }}", "no place for this conversation"),
    "is random": (CHATML + "{{ range(99999)|random }}", "writes something else for the same conversation each time"),
    "loses answers": ("{{ messages[0].content }}<|im_end|>", "does not write the content of an answer"),
    "has no end": (
        "{% for message in messages %}{{ message.role + ': ' + message.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
        "writes nothing after an answer",
    ),
    "begins answers in two ways": (
        CHATML.replace("{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>model\\n' }}"),
        "begins an answer with .*model.* in a prompt",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_run_can_use_is_one_sentence(tiny_model: Path, tmp_path: Path, case: str) -> None:
    template, message = REFUSED[case]
    folder = with_template(tiny_model, tmp_path / "the model", template)
    if case == "two in files":
        (folder / OTHERS).mkdir()
        (folder / OTHERS / "tool_use.jinja").write_text(CODER)
    with pytest.raises(UserError, match=message) as caught:
        Renderer(folder)
    assert "the model" in str(caught.value) and "\n" not in str(caught.value)
