"""What a request asks of its answer beside sampling and limits: functions, least length, echo; and what that needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inference.json_grammar import problem_of
from inference.sequences import JsonFormat
from inference.tool_calls import forced_call_schema
from models.request_body import StoredFormat, StoredTool, StoredToolChoice
from webapp.client_errors import InvalidRequest
from webapp.client_prompt import ClientPrompt
from webapp.options.more_sampling import MoreSampling
from webapp.options.output_options import MOST_SCHEMA_BYTES, MOST_SCHEMA_DEPTH

NOTHING_MORE = MoreSampling()
AS_IT_LIKES = StoredToolChoice()


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The options of one request; the defaults ask for nothing.

    `conversation` has what the request's body keeps of how its prompt came about.
    """

    more: MoreSampling = NOTHING_MORE
    tools: tuple[StoredTool, ...] = ()
    tool_choice: StoredToolChoice = AS_IT_LIKES
    parallel_tool_calls: bool = True
    store: bool = True
    echo: bool = False
    conversation: Mapping[str, Any] = field(default_factory=dict)

    def needs(self, prompt: ClientPrompt, prompt_param: str, *, sampled: bool, logprobs: bool) -> dict[str, str]:
        """What the engine must be able to do, by the names that workers use, with the fields that ask for it."""
        more = self.more
        asked = {
            "min_p": ("min_p", bool(sampled and more.min_p)),
            "repetition_penalty": ("repetition_penalty", more.repetition_penalty not in (None, 1)),
            "ignore_eos": ("ignore_eos", bool(more.ignore_eos)),
            "min_tokens": ("min_tokens", bool(more.min_tokens)),
            "stop_token_ids": ("stop_token_ids", bool(more.stop_token_ids)),
            "raw_prompt": (prompt_param, prompt.raw),
            "tools": ("tools" if prompt.tools else prompt_param, bool(prompt.messages) and prompt.for_model.uses_tools),
            "prompt_logprobs": ("echo", self.echo and logprobs),
        }
        return {ability: param for ability, (param, is_asked) in asked.items() if is_asked}

    @property
    def sampling(self) -> dict[str, Any]:
        """What the stored sampling has beside OpenAI's parameters."""
        asked = {"min_p": self.more.min_p or None, "repetition_penalty": self.more.repetition_penalty}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def body(self) -> dict[str, Any]:
        """What the stored body has beside; nothing where nothing is asked for."""
        asked: dict[str, Any] = {
            "ignore_eos": bool(self.more.ignore_eos),
            "min_tokens": self.more.min_tokens or 0,
            "stop_token_ids": self.more.stop_token_ids or [],
            "echo": self.echo,
            "tools": [tool.model_dump() for tool in self.tools],
        }
        kept = {name: value for name, value in asked.items() if value}
        if self.tools:
            kept |= {"tool_choice": self.tool_choice.model_dump(), "parallel_tool_calls": self.parallel_tool_calls}
        if not self.store:
            kept["store"] = False
        return kept | dict(self.conversation)

    def check(self, limit_tokens: int, format: Mapping[str, Any] | None, format_param: str) -> None:
        """Raise InvalidRequest for options that exclude each other, and for formats that cannot be kept to."""
        if (self.more.min_tokens or 0) > limit_tokens:
            raise InvalidRequest(
                f"Invalid 'min_tokens': the answer has at most {limit_tokens:,} tokens.", param="min_tokens"
            )
        required = self.tool_choice.mode == "required"
        if format is not None and required:
            raise InvalidRequest(
                f"'{format_param}' and a required call exclude each other: an answer is one or the other.",
                param="tool_choice",
            )
        if format is not None or required:
            for name in ("ignore_eos", "min_tokens"):
                if getattr(self.more, name):
                    raise InvalidRequest(f"'{name}' is against a format, whose end ends the answer.", param=name)
        if format is not None:
            _check_format(JsonFormat(StoredFormat.model_validate(format).schema_text), format_param)
        if required:
            self._check_required_call()

    def _check_required_call(self) -> None:
        names = [tool.name for tool in self.tools]
        wanted = self.tool_choice.function
        if not names or (wanted is not None and wanted not in names):
            raise InvalidRequest(
                f"Invalid 'tool_choice': no function '{wanted}' is among the tools."
                if names
                else "Invalid 'tool_choice': there are no tools to choose from.",
                param="tool_choice",
            )
        schema = forced_call_schema([tool.model_dump() for tool in self.tools], wanted)
        _check_format(JsonFormat(StoredFormat(type="json_schema", schema=schema).schema_text), "tools")


NO_OPTIONS = AnswerOptions()


def _check_format(format: JsonFormat, param: str) -> None:
    problem = problem_of(format)
    if problem is not None:
        raise InvalidRequest(
            f"Invalid schema in '{param}': {problem}. Answers can be held to schemas of at most {MOST_SCHEMA_BYTES:,} "
            f"bytes and {MOST_SCHEMA_DEPTH} levels that need neither 'not' nor look-around nor other documents.",
            param=param,
            code="invalid_json_schema",
        )
