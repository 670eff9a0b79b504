"""The tools of `magnus mcp`: requests, batches and usage through the REST API, with the rights of one key.

An error of the API reaches the agent in the API's own words, which say what to do.
"""

import json
import math
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import click
from anyio import from_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field, create_model

from cli.api_client import OPEN_STATES, Client, Json, lines_of, output_text
from cli.bulk_run import ENDED
from settings import VERSION

BATCH = "batch_"  # begins the ids of batches
MOST_INPUTS = 1000  # in one call, whose inputs an agent writes; `magnus batch run` takes any file. Not tuned
POLL_S = 2  # seconds between two reports of progress to a waiting agent; not tuned
INSTRUCTIONS = """\
Magnus answers LLM requests on GPUs of the user's own, from a durable queue. `submit` and `batch` return an id at once;
`wait` with it returns the answer, or the state so far: then call it again. What was submitted goes on without you."""
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
SUBMITS = ToolAnnotations(destructive_hint=False, idempotent_hint=False, open_world_hint=False)
CANCELS = ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False)


def known(description: str) -> Any:
    """Returns an optional field, which an answer leaves out while its value is unknown."""
    return Field(default=None, description=description, exclude_if=lambda value: value is None)


class JobState(BaseModel):
    """A request or a batch at one moment."""

    id: str
    status: str
    ended: bool = Field(description="false: `wait` goes on with it")
    answer: str | None = known("Of a request that was answered; cut off if the status is `incomplete`")
    error: str | None = known("Why a request failed, or the first errors of a batch's lines")
    tokens: int | None = known("Tokens of the answer so far")
    predicted_tokens: int | None = known("Tokens that the whole answer is predicted to have")
    queue_position: int | None = known("1 is served next")
    eta_s: float | None = known("Seconds until the end is expected")
    lines: int | None = known("Of a batch")
    answered_lines: int | None = known("Of a batch")
    failed_lines: int | None = known("Of a batch")


class LineAnswer(BaseModel):
    """The result of one line of a batch."""

    custom_id: str | None = Field(description="Of `batch`: the place of its input, from 0")
    answer: str | None = known("Its answer")
    error: str | None = known("Why it has none")


class LineAnswers(BaseModel):
    """Some lines of a batch, in the order of its inputs."""

    lines: list[LineAnswer]
    more: bool = Field(description="Whether further lines have ended: continue with `after`")


class DayUsage(BaseModel):
    """The usage of one model on one day."""

    day: str
    model: str
    requests: int
    prompt_tokens: int
    answer_tokens: int
    gpu_seconds: float


Id = Annotated[str, Field(description="Of a request (resp_…) or a batch (batch_…)")]
Instructions = Annotated[str | None, Field(description="What to do with the input; the system text")]
Model = Annotated[str | None, Field(description="Model to ask; if not given, the first one that is served")]
MostTokens = Annotated[int | None, Field(ge=1, description="Most tokens of an answer")]


class AgentTools:
    """The tools of the MCP server: each public method is a tool, and an agent reads its docstring and its types."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._of_calls = uuid.uuid4().hex  # hashed with a call's arguments into its idempotency key
        self._files: dict[str, str] = {}  # the id of the uploaded file of inputs, by the key of its batch

    def submit(
        self, input: str, instructions: Instructions = None, model: Model = None, max_output_tokens: MostTokens = None
    ) -> JobState:
        """Submit one request to a language model; returns its id at once. The same call again returns the same id."""
        body = self._body(input, instructions, model, max_output_tokens)
        return request_state(self._client.create(body, self._key(body)))

    def wait(
        self,
        id: Id,
        context: Context[Any, Any],
        timeout_s: Annotated[int, Field(ge=1, le=600, description="Longest wait in seconds")] = 45,
    ) -> JobState:
        """Wait until a request or a batch has ended, or the time is over; returns its state, with the answer."""
        begun, state = time.monotonic(), self._state(id)
        while not state.ended and (waited_s := time.monotonic() - begun) < timeout_s:
            from_thread.check_cancelled()
            from_thread.run(context.report_progress, waited_s, timeout_s, progress_of(state))
            state = self._state(id, min(POLL_S, math.ceil(timeout_s - waited_s)))
        return state

    def status(self, id: Id) -> JobState:
        """Show how far a request or a batch is, with its expected end, without waiting."""
        return self._state(id)

    def batch(
        self,
        inputs: Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)],
        instructions: Instructions = None,
        model: Model = None,
        max_output_tokens: MostTokens = None,
        window: Annotated[str, Field(description="When it must be done: 30m, 24h, 7d")] = "24h",
    ) -> JobState:
        """Submit many inputs as one batch, served with the capacity that other requests leave; returns its id at once.

        Its answers are read with `answers`. The same call again returns the same id.
        """
        model = model or self._client.model()
        bodies = (self._body(one, instructions, model, max_output_tokens) for one in inputs)
        lines = [
            json.dumps({"custom_id": str(place), "method": "POST", "url": "/v1/responses", "body": body})
            for place, body in enumerate(bodies)
        ]
        key = self._key([lines, window])
        if key not in self._files:
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "inputs.jsonl"
                path.write_text("\n".join(lines))
                self._files[key] = self._client.upload(path)["id"]
        asked = {"input_file_id": self._files[key], "endpoint": "/v1/responses", "completion_window": window}
        return batch_state(self._client.create_batch(asked, key))

    def answers(
        self,
        batch_id: str,
        after: Annotated[int, Field(ge=0, description="How many lines to leave out")] = 0,
        limit: Annotated[int, Field(ge=1, le=100, description="Most lines returned")] = 20,
    ) -> LineAnswers:
        """Read the answers of a batch's lines that have ended; page through them once the batch has ended."""
        lines = lines_of(self._client.results(batch_id, "jsonl"))
        read = [json.loads(line) for line in islice(lines, after, after + limit + 1)]
        return LineAnswers(lines=[line_answer(line) for line in read[:limit]], more=len(read) > limit)

    def cancel(self, id: Id) -> JobState:
        """Cancel a request or a batch, waiting or running; answers that are there are kept."""
        self._of_calls = uuid.uuid4().hex  # the same call made again gets a new key and a new id
        if id.startswith(BATCH):
            return batch_state(self._client.act_on_batch(id, "cancel"))
        return request_state(self._client.cancel(id))

    def usage(
        self, days: Annotated[int, Field(ge=1, le=31, description="Up to today, which is included; UTC")] = 7
    ) -> list[DayUsage]:
        """Show requests, tokens and GPU-seconds of each day and model."""
        first = datetime.now(UTC).date() - timedelta(days=days - 1)
        report = self._client.usage(by="day,model", **{"from": first.isoformat()})
        return [DayUsage.model_validate(one) for one in report["data"]]

    def _state(self, id: str, wait_s: int = 0) -> JobState:
        if not id.startswith(BATCH):
            return request_state(self._client.retrieve(id, wait_s))
        time.sleep(wait_s)  # retrieving a batch, unlike a response, does not wait
        return batch_state(self._client.batch(id))

    def _key(self, call: Any) -> str:
        return sha256(f"{self._of_calls}{json.dumps(call)}".encode()).hexdigest()

    def _body(
        self, input: str, instructions: str | None, model: str | None, max_output_tokens: int | None
    ) -> dict[str, Any]:
        fields = {"instructions": instructions, "max_output_tokens": max_output_tokens}
        given = {name: value for name, value in fields.items() if value is not None}
        return {"model": model or self._client.model(), "input": input, **given}


def request_state(response: Json) -> JobState:
    """Returns the state of a request."""
    magnus, answered = response["magnus"], response["status"] in ("completed", "incomplete")
    return JobState(
        id=response["id"],
        status=response["status"],
        ended=response["status"] not in OPEN_STATES,
        answer=output_text(response) if answered else None,
        error=(response["error"] or {}).get("message"),
        tokens=magnus["tokens_so_far"],
        predicted_tokens=magnus["predicted_tokens"],
        queue_position=magnus["queue_position"],
        eta_s=magnus["eta_s"],
    )


def batch_state(batch: Json) -> JobState:
    """Returns the state of a batch, with the first three of its errors."""
    counts = batch["request_counts"]
    errors = [f"line {one['line']}: {one['message']}" for one in (batch["errors"] or {"data": []})["data"][:3]]
    return JobState(
        id=batch["id"],
        status=batch["status"],
        ended=batch["status"] in ENDED,
        error="; ".join(errors) or None,
        eta_s=batch["magnus"]["eta_s"],
        lines=counts["total"],
        answered_lines=counts["completed"],
        failed_lines=counts["failed"],
    )


def progress_of(state: JobState) -> str:
    """Describes a request or batch that has not ended, in words."""
    end = "" if state.eta_s is None else f", the end expected in {state.eta_s:.0f} s"
    if state.lines is not None:
        return f"{state.status}: {state.answered_lines} of {state.lines} lines answered{end}"
    predicted = "" if state.predicted_tokens is None else f" of about {state.predicted_tokens}"
    place = "" if state.queue_position is None else f", place {state.queue_position} in the queue"
    return f"{state.status}{place}: {state.tokens}{predicted} tokens{end}"


def line_answer(line: Json) -> LineAnswer:
    """Returns what a line of a batch's results says, whichever call the line made."""
    body = (line["response"] or {}).get("body", {})
    error = line["error"] or body.get("error")
    if error:
        return LineAnswer(custom_id=line["custom_id"], error=error["message"])
    if "output" in body:
        answer = output_text(body)
    elif "choices" in body:
        choice = body["choices"][0]
        answer = choice["text"] if "text" in choice else choice["message"]["content"]
    else:  # vectors or scores
        answer = json.dumps(body.get("data") or body.get("results"))
    return LineAnswer(custom_id=line["custom_id"], answer=answer)


def explained(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the tool with the client's errors turned into ToolErrors, whose message the agent reads."""

    @wraps(function)
    def call(**arguments: Any) -> Any:
        try:
            return function(**arguments)
        except click.ClickException as error:
            raise ToolError(error.message) from error

    return call


def make_server(client: Client) -> MCPServer[Any]:
    """Returns the server of the tools; `run` serves them on standard input and output."""
    tools = AgentTools(client)
    annotated: dict[Callable[..., Any], ToolAnnotations] = {
        tools.submit: SUBMITS,
        tools.batch: SUBMITS,
        tools.cancel: CANCELS,
        **dict.fromkeys((tools.wait, tools.status, tools.answers, tools.usage), READS),
    }
    made = [strict(Tool.from_function(explained(tool), annotations=hints)) for tool, hints in annotated.items()]
    return MCPServer("magnus", instructions=INSTRUCTIONS, version=VERSION, tools=made, log_level="WARNING")


def strict(tool: Tool) -> Tool:
    """Makes the tool refuse unknown arguments, which the package `mcp` would ignore; returns the tool."""
    facts = tool.fn_metadata
    name, refuse = facts.arg_model.__name__, {"extra": "forbid"}
    facts.arg_model = create_model(name, __base__=facts.arg_model, __cls_kwargs__=refuse)
    tool.parameters = facts.arg_model.model_json_schema()
    return tool
