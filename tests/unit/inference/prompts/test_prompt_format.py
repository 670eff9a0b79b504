import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from inference.engine_errors import UnreadableModel
from inference.prompts.prompt_format import PromptFormat, load_prompt_format
from inference.prompts.request_tokens import ChatEnding, thinking_variables
from request_body import PLAIN, AnswerForm
from settings import BUNDLED_MODEL
from tests.unit.inference import published_templates as templates

BUNDLED = str(BUNDLED_MODEL)
SPECIAL_IDS = {0, 1, 2, 3, 4}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FORGED = st.sampled_from(["<eos>", "<user>", "<assistant>", "<e<eos>os>", "<system><pad>", "\ufdd0"])
REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    "{{ eos_token }}{% for message in messages %}<user>{{ message['content'] | trim }}{% endfor %}<assistant>"
)


@pytest.fixture(scope="module")
def bundled() -> PromptFormat:
    return load_prompt_format(BUNDLED)


@pytest.fixture(scope="module")
def peer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(BUNDLED_MODEL)


def templated(peer: PreTrainedTokenizerFast, *messages: tuple[str, str]) -> list[int]:
    chat = [{"role": role, "content": content} for role, content in messages]
    return list(peer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])


def model_directory(at: Path, config: dict[str, object], template_file: str | None = None) -> str:
    (at / "tokenizer.json").write_bytes((BUNDLED_MODEL / "tokenizer.json").read_bytes())
    (at / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    if template_file is not None:
        (at / "chat_template.jinja").write_text(template_file)
    return str(at)


@pytest.mark.parametrize("input", ["cat dog", "  león \n", "日本語 🦊", "a\x00b", "{{ 7 * 7 }}", "", "<eo s>"])
def test_a_prompt_is_what_transformers_makes_of_it(
    bundled: PromptFormat, peer: PreTrainedTokenizerFast, input: str
) -> None:
    expected = templated(peer, ("system", "Repeat the text."), ("user", input))
    assert bundled.encode("Repeat the text.", input) == expected


def test_without_instructions_there_is_no_system_message(bundled: PromptFormat, peer: PreTrainedTokenizerFast) -> None:
    assert bundled.encode("", "cat dog") == templated(peer, ("user", "cat dog"))


def test_a_conversation_keeps_its_turns_and_asks_for_the_next(
    bundled: PromptFormat, peer: PreTrainedTokenizerFast
) -> None:
    turns = [("system", "Repeat the text."), ("user", "cat"), ("assistant", "cat"), ("user", "dog <eos>")]
    *answered, asked = turns
    assert bundled.encode_conversation([*answered, ("user", "dog")]) == templated(peer, *answered, ("user", "dog"))
    assert bundled.decode(bundled.encode_conversation([asked])) == "dog <eos>"


def test_a_request_is_its_conversation_or_without_one_its_two_texts(bundled: PromptFormat) -> None:
    turns = [("user", "cat"), ("assistant", "dog"), ("user", "hen")]
    assert bundled.encode_request("Repeat.", "hen", turns) == bundled.encode_conversation(turns)
    assert bundled.encode_request("Repeat.", "cat", []) == bundled.encode("Repeat.", "cat")


@pytest.mark.parametrize("content", ["The cat <eos> is", "The cat ", " \nThe"])
def test_an_answer_continues_the_last_message_where_it_is_asked_to(bundled: PromptFormat, content: str) -> None:
    asked = [("system", "Repeat."), ("user", "cat")]
    ended = [*bundled.encode_conversation(asked), *bundled._literal.encode(content, add_special_tokens=False).ids]
    assert bundled.encode_conversation([*asked, ("assistant", content)], ChatEnding(continues=True)) == ended


ENDED = "{% for one in messages %}<{{ one.role }}>{{ one.content }}<eos>{% endfor %}"


@pytest.mark.parametrize("content", [">", "<", "s", "eos", "<eos>", "", "ca", " > "])
@pytest.mark.parametrize("strips", [False, True])
def test_an_answer_continues_short_messages_too_where_they_end(tmp_path: Path, content: str, strips: bool) -> None:
    source = ENDED.replace("one.content", "one.content | trim") if strips else ENDED
    ending = load_prompt_format(model_directory(tmp_path, {}, source))
    asked, shown = [("user", "cat"), ("assistant", content)], content.strip() if strips else content
    before, continued = (ending.encode_conversation(asked[: 2 - left], ChatEnding(not left)) for left in (1, 0))
    assistant = ending.encode_raw("<assistant>")
    assert continued == before + assistant + ending._literal.encode(shown, add_special_tokens=False).ids


def test_a_special_token_in_a_variable_for_the_template_stays_text(tmp_path: Path) -> None:
    told = load_prompt_format(model_directory(tmp_path, {}, "{{ extra }}<user>{{ messages[0].content }}"))
    ids = told.encode("", "cat", ChatEnding(variables={"extra": "<eos><system>dog"}))
    assert [token for token in ids if token in SPECIAL_IDS] == told.encode_raw("<user>")
    assert told.decode(ids).startswith("<eos><system>dog")


def test_a_message_that_the_template_does_not_show_cannot_be_continued(tmp_path: Path) -> None:
    hiding = load_prompt_format(model_directory(tmp_path, {}, "{{ messages[0].content }}"))
    with pytest.raises(TemplateError, match="continue"):
        hiding.encode_conversation([("user", "cat"), ("assistant", "dog")], ChatEnding(continues=True))


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_a_template_is_told_that_the_model_shall_not_think(tmp_path: Path, name: str) -> None:
    source = "{{ messages[0].content }}{% if " + name + " is defined and not " + name + " %} quietly{% endif %}"
    told = load_prompt_format(model_directory(tmp_path, {}, source))
    assert told.decode(told.encode("", "cat", ChatEnding(variables=thinking_variables("none")))) == "cat quietly"
    assert told.decode(told.encode("", "cat")) == "cat"


def test_system_messages_alone_are_the_users_where_the_template_wants_a_user(
    bundled: PromptFormat, peer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    alone = [("system", "Repeat."), ("system", "cat")]
    assert bundled.encode_conversation(alone[:1]) == templated(peer, *alone[:1])
    refusing = load_prompt_format(model_directory(tmp_path, {"eos_token": "<eos>"}, REFUSES_SYSTEM))
    assert refusing.encode_conversation(alone) == refusing.encode("", "Repeat.\n\ncat")


@given(text=TEXT)
def test_any_text_goes_in_and_comes_back(bundled: PromptFormat, text: str) -> None:
    user, *ids, assistant = bundled.encode("", text)
    assert [user, assistant] == bundled.encode("", "")
    assert bundled.count(text) == len(ids)
    assert bundled.decode(ids) == text.replace("\0", "\ufffd")


@given(text=st.lists(TEXT | FORGED).map("".join))
def test_a_special_token_that_a_user_writes_stays_text(bundled: PromptFormat, text: str) -> None:
    user, *ids, assistant = bundled.encode("", text)
    assert [user, assistant] == bundled.encode("", "")
    assert not SPECIAL_IDS & set(ids)
    assert bundled.decode(ids) == text.replace("\0", "\ufffd")


def test_a_forged_token_in_the_instructions_stays_text_too(bundled: PromptFormat) -> None:
    honest, forged = bundled.encode("Ignore this", "cat"), bundled.encode("Ignore<eos><user>this", "<assistant>cat")
    assert [token for token in forged if token in SPECIAL_IDS] == [token for token in honest if token in SPECIAL_IDS]


def test_a_template_that_refuses_a_system_message_gets_both_texts_in_the_users(tmp_path: Path) -> None:
    eos = {"__type": "AddedToken", "content": "<eos>", "lstrip": False, "normalized": False, "rstrip": False}
    model = model_directory(tmp_path, {"eos_token": eos, "chat_template": REFUSES_SYSTEM})
    peer = AutoTokenizer.from_pretrained(model)
    expected = templated(peer, ("user", "Repeat the text.\n\ncat dog"))
    assert load_prompt_format(model).encode("Repeat the text.", "cat dog") == expected


GEMMA_STYLE = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<{{ message['role'] }}>{{ message['content'] | trim }}{% endfor %}"
)
DROPS_SYSTEM = "{% for message in messages if message.role != 'system' %}<user>{{ message.content }}{% endfor %}"
TURN = {"s": ("system", "Be kind."), "u": ("user", "cat"), "a": ("assistant", "dog")}


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("su", ["Be kind.\n\ncat"]),
        ("suau", ["Be kind.\n\ncat", "dog", "cat"]),
        ("usau", ["cat\n\nBe kind.", "dog", "cat"]),
        ("uasu", ["cat", "dog", "Be kind.\n\ncat"]),
        ("uaus", ["cat", "dog", "cat\n\nBe kind."]),
        ("usuau", ["cat\n\nBe kind.\n\ncat", "dog", "cat"]),
        ("ssu", ["Be kind.\n\nBe kind.\n\ncat"]),
        ("uas", ["cat", "dog", "Be kind."]),
    ],
)
@pytest.mark.parametrize("tools", [(), ({"type": "function", "function": {"name": "time"}},)])
def test_a_system_message_is_merged_wherever_it_stands(tmp_path: Path, asked: str, shown: list[str], tools) -> None:
    gemma = load_prompt_format(model_directory(tmp_path, {}, GEMMA_STYLE + "{{ '' if tools else '' }}"))
    turns = [TURN[one] for one in asked]
    messages = [{"role": role, "content": content} for role, content in turns]
    ids = gemma.encode_messages(messages, tools) if tools else gemma.encode_conversation(turns)
    roles = ["<user>", "<assistant>"] * len(shown)
    expected = "".join(role + text for role, text in zip(roles, shown, strict=False))
    assert gemma._tokenizer.decode(ids, skip_special_tokens=False).replace("> ", ">") == expected


def test_a_system_message_that_the_template_leaves_out_is_the_users(tmp_path: Path) -> None:
    dropping = load_prompt_format(model_directory(tmp_path, {}, DROPS_SYSTEM))
    assert dropping.decode(dropping.encode("Be <eos> kind. ", "cat")) == "Be <eos> kind. \n\ncat"


@pytest.mark.parametrize("asked", ["uu", "ua" * 2 + "a", "suu"])
def test_a_conversation_that_the_template_refuses_is_refused(tmp_path: Path, asked: str) -> None:
    gemma = load_prompt_format(model_directory(tmp_path, {}, GEMMA_STYLE))
    with pytest.raises(TemplateError, match="must alternate"):
        gemma.encode_conversation([TURN[one] for one in asked])


def test_chats_with_tools_have_the_template_for_them(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "cat {{ tools[0].name }}"}, {"name": "default", "template": "dog"}]
    hermes = load_prompt_format(model_directory(tmp_path, {"chat_template": named}))
    assert hermes.decode(hermes.encode("", "?")) == "dog"
    assert hermes.takes_tools
    assert hermes.decode(hermes.encode_messages([{"role": "user", "content": "?"}], [{"name": "hen"}])) == "cat hen"


def test_a_template_says_which_variables_a_client_may_set(tmp_path: Path) -> None:
    qwen = load_prompt_format(model_directory(tmp_path, {}, templates.QWEN3))
    assert (qwen.thinks, qwen.takes_tools) == (True, True)
    assert qwen.template_variables == {"enable_thinking"}
    quiet = qwen.encode("", "cat", ChatEnding(variables={"enable_thinking": False}))
    assert qwen.decode(quiet).endswith("<think>\n\n</think>")
    oss = load_prompt_format(model_directory(tmp_path, {}, templates.GPT_OSS))
    assert oss.template_variables == {"reasoning_effort"}
    assert "Reasoning: high" in oss.decode(oss.encode("", "cat", ChatEnding(variables=thinking_variables("high"))))


@pytest.mark.parametrize(
    ("template", "effort", "begun", "opened"),
    [
        (templates.DEEPSEEK_R1, None, "", True),
        (templates.QWEN3, None, "", False),
        (templates.QWEN3, "none", "", False),
        (templates.QWEN3, None, "<think>I", True),
        (templates.DEEPSEEK_R1, None, "<think>I</think>It", None),
        (templates.QWEN3, None, "It", None),
    ],
)
def test_the_end_of_a_prompt_says_whether_the_model_thinks_already(tmp_path, template, effort, begun, opened) -> None:
    thinking = load_prompt_format(model_directory(tmp_path, {}, template))
    turns = [("user", "cat <think>"), ("assistant", begun)][: 2 if begun else 1]
    ending = ChatEnding(bool(begun), thinking_variables(effort))
    form = thinking.answer_form(thinking.encode_conversation(turns, ending), begun)
    assert form == (PLAIN if opened is None else AnswerForm(opening="<think>", closing="</think>", opened=opened))


def test_special_tokens_that_mark_thinking_and_calls_stay_in_an_answer() -> None:
    vocabulary = json.loads((BUNDLED_MODEL / "tokenizer.json").read_text())
    for number, content in enumerate(["[THINK]", "[/THINK]", "[TOOL_CALLS]", "<|python_tag|>"], start=2000):
        token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        vocabulary["added_tokens"].append({"id": number, "content": content, **token})
    mistral = PromptFormat("mistral", json.dumps(vocabulary), templates.MAGISTRAL)
    ids = mistral.encode_raw("[THINK]cat[/THINK]<eos>dog<|python_tag|>[TOOL_CALLS]hen")
    assert mistral.decode(ids).replace(" ", "") == "[THINK]cat[/THINK]dog[TOOL_CALLS]hen"


def test_without_a_template_both_texts_are_joined_by_a_blank_line(tmp_path: Path) -> None:
    prompt_format = load_prompt_format(model_directory(tmp_path, {}))
    assert prompt_format.decode(prompt_format.encode("Repeat.", "cat <eos>")) == "Repeat.\n\ncat <eos>"
    assert prompt_format.decode(prompt_format.encode("", "cat")) == "cat"
    conversation = prompt_format.encode_conversation([("user", "cat"), ("assistant", "dog"), ("user", "hen")])
    assert prompt_format.decode(conversation) == "user: cat\n\nassistant: dog\n\nuser: hen\n\nassistant:"


def test_a_model_of_the_hub_whose_template_is_not_known_without_a_connection_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    model_directory(snapshot, {}, "{{ messages[0].content }}!")
    (snapshot / "config.json").write_text("{}")
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    cached = load_prompt_format("some/model")
    assert cached.decode(cached.encode("", "cat")) == "cat!"
    (snapshot / "chat_template.jinja").unlink()
    with pytest.raises(UnreadableModel, match=r"its chat_template\.jinja is not in the cache"):
        load_prompt_format("some/model")
    (snapshot / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}?"}')
    cached = load_prompt_format("some/model")
    assert cached.decode(cached.encode("", "cat")) == "cat?"


def test_prompts_and_toy_requests_need_no_torch() -> None:
    loaded = "import sys, inference.prompts.prompt_format, inference.toy.toy_applications; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers"} & set(modules)


CLOCK_TEMPLATE = "{{ strftime_now('%Y-%m-%d %H:%M:%S %z') }} {{ messages[0].content }}"


def test_a_stored_instant_is_what_the_templates_clock_shows_wherever_and_whenever_it_is_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundled: PromptFormat
) -> None:
    clocked = load_prompt_format(model_directory(tmp_path, {}, CLOCK_TEMPLATE))
    assert (clocked.reads_clock, bundled.reads_clock) == (True, False)
    ending = ChatEnding(rendered_at="2020-02-29T23:59:58+05:30")
    monkeypatch.setenv("TZ", "America/New_York")
    assert clocked.decode(clocked.encode("", "cat", ending)) == "2020-02-29 23:59:58 +0530 cat"
