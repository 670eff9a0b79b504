"""Signatures that the official client verifies."""

from dataclasses import replace
from time import time

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from models.webhooks.webhook_deliveries import ClaimedDelivery
from models.webhooks.webhook_endpoints import new_secret
from tasks.chores.webhook_delivery import LONGEST_RETRY_S, event_body, retry_in_s, signature, signed_headers
from tasks.chores.webhook_sender import GIVE_UP_AFTER_S

# The example of the specification of Standard Webhooks: its secret, id, timestamp and payload, and the signature.
EXAMPLE = (
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "1614265330",
    b'{"test": 2432232314}',
)


def delivery(now: float) -> ClaimedDelivery:
    answered = f"resp_{7:032x}"
    return ClaimedDelivery(
        1,
        "we_1",
        f"evt_{7:032x}",
        "response.completed",
        answered,
        now - 100.5,
        1,
        "https://example.com/",
        new_secret(),
        None,
        now,
    )


def test_the_specifications_example_has_its_signature():
    assert signature(*EXAMPLE) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("type", ["response.completed", "response.failed", "response.cancelled", "response.incomplete"])
def test_the_openai_client_unwraps_an_event(type: str):
    sent = replace(delivery(time()), type=type)
    body = event_body(sent)
    client = OpenAI(api_key="k", webhook_secret=sent.secret)
    event = client.webhooks.unwrap(body, signed_headers(sent, body))
    assert event.to_dict() == {
        "id": sent.event_id,
        "object": "event",
        "type": type,
        "created_at": int(sent.event_at),
        "data": {"id": sent.object_id},
    }


def test_while_a_secret_is_rotated_both_verify_and_afterwards_the_new_one_alone():
    sent = delivery(time())
    rotated = replace(sent, secret=new_secret(), old_secret=sent.secret)
    body = event_body(sent)
    client = OpenAI(api_key="k")
    for secret in (rotated.secret, sent.secret):
        client.webhooks.unwrap(body, signed_headers(rotated, body), secret=secret)
    headers = signed_headers(replace(rotated, old_secret=None), body)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, headers, secret=sent.secret)


def test_pauses_between_attempts_grow_and_go_on_for_a_day():
    pauses = [retry_in_s(attempts) for attempts in range(1, 200)]
    assert pauses[:4] == [5.0, 20.0, 80.0, 320.0]
    assert pauses == sorted(pauses)
    assert max(pauses) == LONGEST_RETRY_S
    assert 10 < sum(sum(pauses[:n]) < GIVE_UP_AFTER_S for n in range(len(pauses))) < 30
