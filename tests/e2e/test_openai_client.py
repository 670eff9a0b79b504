"""The official `openai` client, unchanged, against the whole service and the bundled model."""

from collections.abc import Iterator
from threading import Event

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from inference.toy.toy_applications import APPLICATIONS
from tests.e2e.whole_service import Up

pytestmark = pytest.mark.timeout(300)

MODEL = "bundled"
REPEAT = APPLICATIONS["repeat"].instruction
DOUBLE = APPLICATIONS["double"].instruction
LONG_INPUT = " ".join(["river cloud"] * 30)


@pytest.fixture(scope="module")
def client(up: Up) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{up.url}/v1", api_key=up.key) as client:
        yield client


def final(client: OpenAI, response: Response) -> Response:
    """Poll as the client's documentation does."""
    pause = Event()
    while response.status in ("queued", "in_progress"):
        pause.wait(0.05)
        response = client.responses.retrieve(response.id)
    return response


def test_a_background_response_is_created_retrieved_and_read(client: OpenAI) -> None:
    metadata = {"application": "double", "ticket": "A-17"}
    created = client.responses.create(
        model=MODEL, instructions=DOUBLE, input="river cloud", background=True, metadata=metadata
    )
    assert created.status == "queued"
    assert created.background is True
    response = final(client, created)
    assert response.status == "completed"
    assert response.output_text == "river river cloud cloud"
    assert response.metadata == metadata
    assert response.usage is not None
    assert response.usage.output_tokens == 5
    assert response.usage.total_tokens == response.usage.input_tokens + 5
    assert response.model_extra is not None
    assert response.model_extra["magnus"]["attempts"] == 1


def test_a_response_that_is_waited_for_comes_back_completed(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, instructions=REPEAT, input="river cloud")
    assert (response.status, response.output_text) == ("completed", "river cloud")


def test_messages_say_the_same_as_instructions_and_input(client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL, input=[{"role": "developer", "content": REPEAT}, {"role": "user", "content": "river cloud"}]
    )
    assert response.output_text == "river cloud"


def test_an_answer_that_reaches_its_limit_is_incomplete(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, instructions=DOUBLE, input="river cloud", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "river river cloud"


def test_a_cancelled_response_stays_cancelled(client: OpenAI) -> None:
    def cancelled_in_time() -> Response | None:
        created = client.responses.create(model=MODEL, instructions=DOUBLE, input=LONG_INPUT, background=True)
        response = final(client, client.responses.cancel(created.id))
        return response if response.status == "cancelled" else None

    response = next(filter(None, (cancelled_in_time() for _ in range(20))))
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"


def test_a_deleted_response_is_gone(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, instructions=REPEAT, input="river")
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_the_served_model_is_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "gpt-nonsense"}, openai.NotFoundError, "model"),
        ({"input": ""}, openai.BadRequestError, "input"),
        ({"input": "word " * 5000}, openai.BadRequestError, "input"),
        ({"max_output_tokens": 0}, openai.BadRequestError, "max_output_tokens"),
        ({"temperature": 17.0}, openai.BadRequestError, "temperature"),
    ],
)
def test_what_is_wrong_raises_the_clients_own_error_with_the_fields_name(
    client: OpenAI, fields: dict[str, object], error: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(error) as raised:
        client.responses.create(**{"model": MODEL, "input": "river", **fields})  # type: ignore[call-overload]
    assert raised.value.param == param
    assert raised.value.type == "invalid_request_error"


def test_a_key_that_nobody_gave_out_is_refused(up: Up) -> None:
    with OpenAI(base_url=f"{up.url}/v1", api_key="sk-nobody") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.responses.create(model=MODEL, input="river")
