"""The probed abilities of a server, and the functions that are lost without them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from inference.engine_errors import UnreadableTokenizer
from inference.prompt_format import load_prompt_format
from inference.remote.server_errors import ServerUnusable
from request_body import ABILITIES

ServerKind = Literal["vllm", "llamacpp", "transformers", "openai"]

# Abilities that `losses` describes in its own sentences, or that follow from them.
NAMED_ELSEWHERE = frozenset(
    {"temperature", "stop_token_ids", "raw_prompt", "tools", "response_format", "logprobs", "prompt_logprobs"}
)


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """The abilities of a server that an engine or a policy asks for; the defaults are those of an unknown server."""

    token_ids_in: bool = False  # prompts as token ids
    token_ids_out: bool = False  # answers as token ids
    streamed_usage: bool = False  # the number of generated tokens is known while they come
    abort: bool = True  # a closed connection ends the row
    priority: bool = False  # a row's priority orders the server's own queue
    own_sampling: bool = True  # each row has its own temperature, top_p and seed
    options: frozenset[str] = frozenset()  # further fields of Sampling that it accepts
    logprobs: bool = False
    response_format: bool = False  # it can hold an answer to JSON, or to a schema of it
    prefix_cache: bool = False  # it reuses cached prefixes of prompts
    cache_salt: bool = False  # rows of different salts share no cached prompt
    tokenizer: bool = False  # it encodes prompts and decodes answers over HTTP
    kv_tokens: int | None = None  # tokens of its KV cache, if it reports them
    kv_tokens_at_least: bool = False  # `kv_tokens` is a lower bound
    reports_running: bool = False
    reports_waiting: bool = False
    reports_preemptions: bool = False
    load_page: str | None = None  # the path that reports the load
    paged: bool = True  # memory is the sum over rows in blocks; False: rows times the longest of them
    block_tokens: int = 1  # tokens of one block of that memory

    @property
    def resumes(self) -> bool:
        """Whether a row that was taken out can continue from its tokens."""
        return self.token_ids_in and self.token_ids_out

    @property
    def lacks(self) -> tuple[str, ...]:
        """Names of ABILITIES that a request may need and this server does not have."""
        able = {
            "temperature": self.own_sampling,
            "stop_token_ids": self.token_ids_out,
            "raw_prompt": self.token_ids_in,
            "tools": self.token_ids_in,
            "response_format": self.response_format,
            "logprobs": self.logprobs,
        }
        return tuple(name for name in ABILITIES if name not in self.options and not able.get(name))

    def losses(self) -> Iterator[str]:
        """Yields a sentence for each function that does not work with this server."""
        if not self.resumes:
            yield "no token ids: a row that is interrupted starts anew, slices run to the end"
        if not self.streamed_usage:
            yield "no counts while streaming: progress is counted in chunks until the answer ends"
        if not self.abort:
            yield "no abort: a cancelled row runs on in the server"
        if not self.priority:
            yield "no priorities in the server: they order our queue only"
        if not self.own_sampling:
            yield "no sampling of its own for each request: requests that ask for a temperature are refused"
        missing = [name for name in self.lacks if name not in NAMED_ELSEWHERE]
        if missing:
            yield f"no {', '.join(missing)}: requests that ask for one of them are refused"
        if not self.token_ids_in:
            yield "no prompts as they are: completions, and chats with tools, are refused"
        if not self.response_format:
            yield "no response_format: requests that ask for JSON are refused"
        if not self.logprobs:
            yield "no logprobs: requests that ask for them are refused"
        if self.prefix_cache and not self.cache_salt:
            yield "no salts: from how soon its answer begins, a tenant may guess how prompts of others begin"
        if self.kv_tokens_at_least:
            yield "its memory is taken for what one of its slots may hold: --capacity-tokens says what all have"
        if self.kv_tokens is None:
            yield "its memory is unknown: a cap on rows follows the measured throughput"
        if not self.reports_waiting:
            yield "its queue is unknown: a row that gets no token is taken for one that waits"


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """A probed server: its address, the model that it serves, its abilities. `capacity_tokens` and `max_rows` limit our
    rows there, if they are known or configured.
    """

    url: str
    kind: ServerKind
    model: str
    capabilities: ServerCapabilities
    key: str | None = None
    max_positions: int | None = None
    capacity_tokens: int | None = None
    max_rows: int | None = None
    model_directory: str | None = None  # the model's path on the server, as the server reports it

    def __repr__(self) -> str:
        """Returns the representation without the key."""
        return f"ProbedServer({self.kind} at {self.url}, model {self.model})"

    @property
    def client_name(self) -> str:
        """The model's name as clients send it."""
        return client_name(self.model)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request to the server."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def client_name(model: str) -> str:
    """Returns a model's name for clients: the last part of a directory's path, else the name itself."""
    return Path(model).name if model.startswith("/") else model


def tokenizer_source(server: ProbedServer, configured: str | None) -> str:
    """Returns where the tokenizer is: as configured, else in the server's model directory, else the server itself.

    The result is a directory, a hub id, or KIND+URL, for `server_tokens.load_request_tokens`. Raises ServerUnusable.
    """
    if configured is not None:
        return configured
    if server.model_directory is not None and (_readable(server.model_directory) or not server.capabilities.tokenizer):
        return server.model_directory
    if server.capabilities.tokenizer:
        return f"{server.kind}+{server.url}"
    raise ServerUnusable(
        server.url, "it has no /tokenize and names no directory: give MAGNUS_MODEL its model's directory or hub id"
    )


def _readable(source: str) -> bool:
    try:
        load_prompt_format(source)
    except UnreadableTokenizer:
        return False
    return True
