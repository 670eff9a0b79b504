"""An event as Standard Webhooks sends it: its body, as OpenAI's webhooks shape it, and its signed headers."""

import base64
import hashlib
import hmac
import json

from models.webhooks.webhook_deliveries import ClaimedDelivery


def event_body(delivery: ClaimedDelivery) -> bytes:
    """The body; the same bytes at each attempt."""
    event = {
        "id": delivery.event_id,
        "object": "event",
        "type": delivery.type,
        "created_at": int(delivery.event_at),
        "data": {"id": delivery.object_id},
    }
    return json.dumps(event, separators=(",", ":")).encode()


def signed_headers(delivery: ClaimedDelivery, body: bytes) -> dict[str, str]:
    """webhook-id, -timestamp (of this attempt) and -signature: by the secret, and by the old one while it signs."""
    timestamp = str(int(delivery.now))
    secrets = [secret for secret in (delivery.secret, delivery.old_secret) if secret]
    return {
        "webhook-id": delivery.event_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signature(secret, delivery.event_id, timestamp, body) for secret in secrets),
    }


def signature(secret: str, event_id: str, timestamp: str, body: bytes) -> str:
    """`v1,` and the base64 of HMAC-SHA256 over id.timestamp.body; the key is what follows whsec_, decoded."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((event_id.encode(), timestamp.encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
