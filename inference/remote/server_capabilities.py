"""The capabilities of a server as probed, and the functions that do not work because it lacks some of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from inference.engine_errors import UnreadableModel
from inference.prompts.prompt_format import load_prompt_format
from inference.remote.server_errors import ServerUnusable
from request_body import ABILITIES

ServerKind = Literal["vllm", "llamacpp", "transformers", "openai"]
Announced = Mapping[str, object]  # what a server says of a model beside its name

# Abilities whose absence `losses` reports in a separate sentence.
REPORTED_SEPARATELY = frozenset(
    {
        "temperature",
        "stop_token_ids",
        "raw_prompt",
        "tools",
        "response_format",
        "logprobs",
        "prompt_logprobs",
        "continue_final_message",
        "reasoning",
        "format_after_thinking",
    }
)


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """The capabilities that the engine and the policies use; the defaults are those of an unknown server."""

    token_ids_in: bool = False  # the server takes prompts as token ids
    token_ids_out: bool = False  # the server gives answers as token ids
    streamed_usage: bool = False  # the stream tells the number of generated tokens
    priority: bool = False  # a row's priority orders the server's own queue
    own_sampling: bool = True  # each row has its own temperature, top_p and seed
    options: frozenset[str] = frozenset()  # further abilities, most of them fields of Sampling, that the server has
    logprobs: bool = False
    response_format: bool = False  # the server can constrain an answer to JSON, or to a JSON schema
    prefix_cache: bool = False  # the beginning of a prompt is not computed again if it is cached
    cache_salt: bool = False  # rows with different salts share no cached prompt
    tokenizer: bool = False  # the server encodes prompts and decodes answers over HTTP
    kv_tokens: int | None = None  # the number of tokens that fit in the KV cache, if the server reports it
    kv_tokens_at_least: bool = False  # more than `kv_tokens` may fit
    reports_running: bool = False
    reports_waiting: bool = False
    reports_preemptions: bool = False
    load_page: str | None = None  # the path of the page with those reports
    block_tokens: int = 1  # the number of tokens in a block of the KV cache

    @property
    def resumes(self) -> bool:
        """Whether a row that was taken out continues after its last token."""
        return self.token_ids_in and self.token_ids_out

    @property
    def lacks(self) -> tuple[str, ...]:
        """The names in ABILITIES that this server does not have."""
        able = {
            "temperature": self.own_sampling,
            "stop_token_ids": self.token_ids_out,
            "raw_prompt": self.token_ids_in,
            "tools": self.token_ids_in,
            "continue_final_message": self.token_ids_in,
            "reasoning": self.token_ids_in,
            "response_format": self.response_format,
            "logprobs": self.logprobs,
        }
        return tuple(name for name in ABILITIES if name not in self.options and not able.get(name))

    def losses(self) -> list[str]:
        """Returns a sentence for each function that does not work with this server."""
        missing = [name for name in self.lacks if name not in REPORTED_SEPARATELY]
        sentences = (
            (not self.resumes, "no token ids: an interrupted row restarts from its prompt, and slices run to the end"),
            (not self.streamed_usage, "no counts while streaming: progress is counted in chunks until the answer ends"),
            (not self.priority, "no priorities in the server: they order only our queue"),
            (not self.own_sampling, "no sampling parameters for each request: requests with a temperature are refused"),
            (missing, f"no {', '.join(missing)}: requests that ask for one of them are refused"),
            (not self.token_ids_in, "no raw prompts: completions, chats with tools and continued messages are refused"),
            (not self.response_format, "no response_format: requests that ask for JSON are refused"),
            (not self.logprobs, "no logprobs: requests that ask for them are refused"),
            (
                self.prefix_cache and not self.cache_salt,
                "no salts: the time to a first token may tell a tenant how prompts of others begin",
            ),
            (
                self.kv_tokens_at_least,
                "its memory is unknown and counted as one slot's: set --capacity-tokens for all slots",
            ),
            (self.kv_tokens is None, "its memory is unknown: a cap on rows follows the measured throughput"),
            (not self.reports_waiting, "its queue is unknown: a row without a token counts as waiting"),
        )
        return [sentence for is_lost, sentence in sentences if is_lost]


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """A server with its address, model and capabilities; `capacity_tokens` and `max_rows` None means unknown."""

    url: str
    kind: ServerKind
    model: str
    capabilities: ServerCapabilities
    key: str | None = None
    max_positions: int | None = None
    capacity_tokens: int | None = None
    max_rows: int | None = None
    model_directory: str | None = None  # the directory from which the server says it loaded the model
    adapters: tuple[str, ...] = ()  # names that the server lists beside the model, and serves
    announced: Mapping[str, Announced] = field(default_factory=dict, hash=False)  # by each model that it lists

    def __repr__(self) -> str:
        """Returns a description without the key."""
        return f"ProbedServer({self.kind} at {self.url}, model {self.model})"

    @property
    def client_name(self) -> str:
        """The model's name in requests of clients."""
        return client_name(self.model)

    @property
    def query(self) -> dict[str, str] | None:
        """The query of requests for a page about the model, which llama.cpp's router needs."""
        return {"model": self.model} if self.kind == "llamacpp" else None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request to the server."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def client_name(model: str) -> str:
    """Returns a model's name for clients: a directory's last part, or the name without Ollama's `:latest`."""
    return Path(model).name if model.startswith("/") else model.removesuffix(":latest")


def tokenizer_source(server: ProbedServer, configured: str | None) -> str:
    """Returns the tokenizer's source: `configured`, the server's directory, or the server as KIND+URL.

    Raises ServerUnusable.
    """
    if configured is not None:
        return configured
    if server.model_directory is not None and (_readable(server.model_directory) or not server.capabilities.tokenizer):
        return server.model_directory
    if server.capabilities.tokenizer:
        return f"{server.kind}+{server.url}"
    raise ServerUnusable(
        server.url,
        "its /tokenize gives no ids and it names no directory: give MAGNUS_MODEL its model's directory or hub id",
    )


def _readable(source: str) -> bool:
    try:
        load_prompt_format(source)
    except UnreadableModel:
        return False
    return True
