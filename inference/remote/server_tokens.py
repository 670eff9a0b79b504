"""Uses a server's tokenizer and chat template over HTTP, for a model whose directory cannot be read here.

Each call is a short request to the server. vLLM encodes the names of special tokens in users' texts as special tokens;
for llama.cpp these names are shielded in all texts of a request.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal, cast
from weakref import finalize

import httpx
from jinja2 import TemplateError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_fixed

from inference.answer_text import storable
from inference.engine_errors import TokenizerAway
from inference.engine_requests import MAX_TOKEN_ID
from inference.json_grammar import FormatChecks
from inference.model_directory.chat_template import system_as_user
from inference.model_directory.generation_defaults import GenerationDefaults
from inference.prompts.prompt_format import ANCHOR, each_text, load_prompt_format
from inference.prompts.request_tokens import NEXT_TURN, ChatEnding, RequestTokens, Turn
from request_body import PLAIN, AnswerForm

TokenizerKind = Literal["vllm", "llamacpp"]

ANSWER_WITHIN_S = 5.0  # a tokenizer takes milliseconds, and a call of the API waits for it; not tuned
# A finished answer that cannot be decoded would be generated again, so decoding is retried for two seconds. The caller
# may hold a lock on the lease's row meanwhile, so the two seconds must stay well below MAGNUS_LEASE_S.
DECODE_RETRIES = Retrying(
    retry=retry_if_exception_type(TokenizerAway), stop=stop_after_delay(2.0), wait=wait_fixed(0.2), reraise=True
)

# A request on a connection that the server was about to close is sent once more on another one. uvicorn closes a
# connection only after it has logged the exception behind its answer 500, and resets a request sent on it meanwhile.
CLOSED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
ON_ANOTHER_CONNECTION = Retrying(retry=retry_if_exception_type(CLOSED), stop=stop_after_attempt(2), reraise=True)

# Characters that Unicode reserves for internal use. The first one that no text of a request has splits special tokens.
SHIELDS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


def load_request_tokens(model: str, key: str | None) -> RequestTokens:
    """Returns the tokenizer of the model in MAGNUS_MODEL: a directory, a hub id, or a server as KIND+URL.

    Raises UnreadableModel. If a server is unavailable, the first call of a method raises TokenizerAway.
    """
    kind, plus, url = model.partition("+")
    if plus and kind in ("vllm", "llamacpp") and url.startswith(("http://", "https://")):
        return ServerTokens(cast(TokenizerKind, kind), url, key)
    return load_prompt_format(model)


def is_server(model: str) -> bool:
    """Returns whether MAGNUS_MODEL names a server's tokenizer instead of a model."""
    return model.startswith(("vllm+http", "llamacpp+http"))


class ServerTokens:
    """The tokenizer of the server at this URL, which any thread may use."""

    reads_clock = False  # a server's template reads the server's own clock
    takes_tools = False  # tools are rendered on our side, which needs the template in a model's directory
    vocabulary_size = context_tokens = template_variables = None
    generation = GenerationDefaults()  # the server's own config is not read here
    thinks = False  # unknown here, so the tags of thinking stay in the answers' text
    long_prompts = None  # the server's process encodes them
    detokenizer = None  # a request for each token would take longer than generating it; the server finds stop strings

    def __init__(self, kind: TokenizerKind, url: str, key: str | None = None) -> None:
        self.name, self.formats = url, FormatChecks()
        self._kind = kind
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=ANSWER_WITHIN_S)
        finalize(self, self._client.close)
        self._bytes: dict[int, bytes] = {}  # results of `token_bytes`

    def encode_request(
        self, instructions: str, input: str, turns: Sequence[Turn], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        """Returns the token ids of a prompt by the server's chat template, or of its plain text without a template."""
        joined = f"{instructions}\n\n{input}" if instructions else input
        asked = turns or [("system", instructions)] * bool(instructions) + [("user", input)]
        messages = [{"role": role, "content": content} for role, content in asked]
        attempts = [messages]
        if any(role == "system" for role, _ in asked):  # some templates, such as Gemma's, refuse these
            attempts.append(system_as_user(messages))
        plain = "".join(f"{role}: {content}\n\n" for role, content in turns) + "assistant:" if turns else joined
        for attempt in attempts:
            ids = self._encode_chat(attempt, ending)
            if ids is not None:
                return ids
        if ending.continues:
            raise TemplateError("the server does not let an answer continue a message")
        if turns and self._encode_chat([{"role": "user", "content": "?"}], NEXT_TURN) is not None:
            raise TemplateError("the server refuses the order of its messages")
        return self._encode(plain, special=False)

    def encode_messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        """Raises TemplateError, because the server's template does not take tools."""
        raise TemplateError("the server's chat template is not read here, so that it takes no tools")

    def answer_form(self, prompt_ids: Sequence[int], begun: str = "") -> AnswerForm:
        """Returns the form of plain text, because the server's template is not read here."""
        return PLAIN

    def encode_raw(self, text: str) -> list[int]:
        """Returns the token ids of a prompt without a chat template."""
        return self._encode(text, special=True)

    def count(self, text: str) -> int:
        """Returns the number of tokens in a text."""
        return len(self._encode(text, special=False))

    def decode(self, ids: Sequence[int], *, continues: bool = False) -> str:
        """Returns the text of an answer; retries for two seconds while the server is unavailable."""
        if continues:
            anchor = self._encode(ANCHOR, special=False)
            return self.decode([*anchor, *ids])[len(self.decode(anchor)) :]
        return storable(DECODE_RETRIES(self._decode, ids))

    def _decode(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        field = {"vllm": "prompt", "llamacpp": "content"}[self._kind]
        text = self._post("/detokenize", {"tokens": list(ids)}).get(field)
        if not isinstance(text, str):
            raise TokenizerAway("it answers /detokenize with no text")
        return text

    def token_bytes(self, id: int) -> bytes:
        """Returns the bytes that a token adds to an answer; a part of a character gives the bytes of U+FFFD."""
        if id not in self._bytes:
            anchor = self._encode(ANCHOR, special=False)
            self._bytes[id] = self._decode([*anchor, id]).removeprefix(self._decode(anchor)).encode()
        return self._bytes[id]

    def _encode_chat(self, messages: Sequence[Mapping[str, str]], ending: ChatEnding) -> list[int] | None:
        """Returns the token ids of a chat; None if the server has no template, or its template refuses the messages."""
        body: dict[str, Any] = {"messages": messages}
        if ending.variables:
            body["chat_template_kwargs"] = dict(ending.variables)
        if self._kind == "vllm":
            body["add_generation_prompt"] = not ending.continues
            answer = self._ask("/tokenize", body | ({"continue_final_message": True} if ending.continues else {}))
            return None if answer.status_code == 400 else self._ids(self._object(answer))
        if ending.continues:  # not every llama.cpp leaves a last message open
            return None
        shield = next((mark for mark in SHIELDS if mark not in json.dumps(body, ensure_ascii=False)), SHIELDS[0])
        answer = self._ask("/apply-template", self._shielded(body, shield))
        if answer.status_code in (400, 500):
            return None
        prompt = self._object(answer).get("prompt")
        if not isinstance(prompt, str):
            raise TokenizerAway("it answers /apply-template with no prompt")
        pieces = re.split(f"((?:.{shield})+.)", prompt, flags=re.DOTALL)  # every second piece was shielded
        encoded = (self._encode(one.replace(shield, ""), special=not at % 2) for at, one in enumerate(pieces))
        return [*chain.from_iterable(encoded)]

    def _shielded(self, body: Mapping[str, Any], shield: str) -> Any:
        """Returns the body with a shield between all characters of texts that name special tokens."""

        def shielded(text: str) -> str:
            shown = text.strip()  # templates strip texts, too
            if not shown or self._encode(text, special=True) == self._encode(text, special=False):
                return text
            return text.replace(shown, shield.join(shown))

        messages = [{**message, "content": shielded(message["content"])} for message in body["messages"]]
        variables = each_text(body.get("chat_template_kwargs", {}), shielded)
        return {"messages": messages} | ({"chat_template_kwargs": variables} if variables else {})

    def _encode(self, text: str, special: bool) -> list[int]:
        """Returns token ids; with `special`, names such as <eos> are encoded as special tokens (llama.cpp only)."""
        if not text:
            return []
        if self._kind == "vllm":
            return self._ids(self._post("/tokenize", {"prompt": text, "add_special_tokens": False}))
        body = {"content": text, "add_special": False, "parse_special": special}
        return self._ids(self._post("/tokenize", body))

    def _ids(self, answer: Mapping[str, Any]) -> list[int]:
        ids = answer.get("tokens")
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one <= MAX_TOKEN_ID for one in ids):
            raise TokenizerAway("it answers /tokenize with no ids")
        return ids

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._object(self._ask(path, body))

    def _ask(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        try:
            return ON_ANOTHER_CONNECTION(self._client.post, path, json=body)
        except httpx.HTTPError as error:
            raise TokenizerAway(type(error).__name__) from error

    def _object(self, answer: httpx.Response) -> Mapping[str, Any]:
        try:
            found = answer.json() if answer.is_success else None
        except ValueError:
            found = None
        if not isinstance(found, Mapping):
            raise TokenizerAway(f"status {answer.status_code} from {answer.request.url.path}")
        return found
