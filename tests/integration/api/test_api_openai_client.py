"""The official openai client over real HTTP: submit, poll, cancel, delete, list, wait, and its exceptions."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import openai
import pytest
from openai import DefaultHttpxClient, OpenAI

from models.connections.session import make_sessions
from models.planning.queue_snapshot import QueueSnapshot, WaitingQueue, write_queue_snapshot
from models.tenants import tenant_limits
from models.tenants.api_keys import Scope
from tests.integration.api_service import Api
from tests.integration.database_stage import eventually


@pytest.fixture
def worker(api: Api) -> Iterator[None]:
    """Ends whatever is queued, as workers do."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            api.sql(
                """update requests set status = 'completed', output_text = upper(input), output_tokens = 2,
                finish_reason = 'eos', finished_at = clock_timestamp() where status = 'queued'"""
            )
            stop.wait(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.usefixtures("worker")
def test_submit_and_poll(client: OpenAI) -> None:
    made = client.responses.create(
        model="words",
        instructions="Shout.",
        input="hello world",
        background=True,
        extra_body={"magnus": {"priority": 1}},
    )
    assert made.status in ("queued", "completed")
    done = eventually(lambda: polled if (polled := client.responses.retrieve(made.id)).status == "completed" else None)
    assert done.output_text == "HELLO WORLD"
    assert done.usage is not None
    assert done.usage.output_tokens == 2
    assert done.to_dict()["magnus"]["prompt_tokens"] == 4  # type: ignore[index]


@pytest.mark.usefixtures("worker")
def test_calls_that_wait(client: OpenAI) -> None:
    assert client.responses.create(model="words", input="hello").output_text == "HELLO"
    chat = client.chat.completions.create(model="words", messages=[{"role": "user", "content": "hello"}])
    assert chat.choices[0].message.content == "HELLO"
    assert client.completions.create(model="words", prompt="hello").choices[0].text == "HELLO"


@pytest.mark.usefixtures("worker")
def test_answered_chats_are_listed_and_retrieved(client: OpenAI) -> None:
    made = [
        client.chat.completions.create(model="words", messages=[{"role": "user", "content": text}])
        for text in ("one", "two", "three")
    ]
    assert [chat.id for chat in client.chat.completions.list(limit=2)] == [chat.id for chat in made]
    assert client.chat.completions.retrieve(made[1].id).choices == made[1].choices
    for unknown in ("chatcmpl-1", f"chatcmpl-{0:032x}"):
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.retrieve(unknown)


def test_cancel_delete_and_list(client: OpenAI) -> None:
    made = client.responses.create(model="words", input="hello", background=True)
    assert client.responses.cancel(made.id).status == "cancelled"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve(made.id)
    assert caught.value.code == "response_not_found"
    assert [model.id for model in client.models.list()] == ["words"]


def test_its_exceptions_carry_message_param_and_code(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="words", input="", background=True)
    assert caught.value.param == "input"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="gpt-9", input="a")
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided: magnus-no"):
        client.with_options(api_key="magnus-no").models.list()


def test_a_missing_scope_is_its_error_of_permission(client: OpenAI, api: Api) -> None:
    reader = client.with_options(api_key=api.with_key(scopes={Scope.read}).key)
    assert reader.models.list().data
    with pytest.raises(openai.PermissionDeniedError, match="Missing scopes: submit") as caught:
        reader.responses.create(model="words", input="hello", background=True)
    assert caught.value.code == "missing_scope"


def test_a_refused_call_is_made_again_when_the_service_says_and_not_before(api: Api, base_url: str) -> None:
    with make_sessions(api.engine).begin() as session:
        tenant_limits.change_tenant(session, "acme", {"queued_requests": 1})
    with api.engine.begin() as connection:  # one of one has to go, in two seconds
        write_queue_snapshot(
            connection, QueueSnapshot(at=datetime.now(UTC), queue=WaitingQueue(requests=1, backlog_s=2.0))
        )
    waiting = api.submit()["id"]
    sent_at: list[float] = []

    def sent(_: object) -> None:
        sent_at.append(time.monotonic())
        if len(sent_at) == 2:
            api.sql("update requests set status = 'cancelled', finished_at = now() where id = :id", id=waiting)

    with (
        DefaultHttpxClient(event_hooks={"request": [sent]}) as http_client,
        OpenAI(api_key=api.key, base_url=base_url, max_retries=1, http_client=http_client) as client,
    ):
        assert client.responses.create(model="words", input="hello", background=True).status == "queued"
    first, second = sent_at
    assert second - first >= 2.0  # by itself the client would have waited for half a second
