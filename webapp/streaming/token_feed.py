"""Hears what workers publish of answers in the making, in one thread for all streams, while there are any.

Without a broker nothing comes, and every stream gets its text at the end, from Postgres.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy.exc import SQLAlchemyError

from webapp.streaming.token_messages import asks_channel, decode_pieces, encode_asks, pieces_channel

# How often workers are asked again for the beginnings of answers of which something is missing. Shorter closes gaps
# sooner; an ask costs a worker some microseconds for each stream. Not tuned.
ASK_EVERY_S = 0.5
TURN_S = 0.1  # longest single wait for a message; a stop and a first ask may take as long
LINGER_S = 10.0  # time that it goes on listening after the last stream, so that the next need not connect; not tuned
RECONNECT_S = 1.0  # after an error; not tuned
TIMEOUT_S = 2.0  # of a connection, and of an ask

log = structlog.get_logger()


class LiveText:
    """Pieces put together by their positions; the feed's thread adds them, the stream's thread reads `text`."""

    def __init__(self, id: str, on_more: Callable[[], None], *, missed: bool) -> None:
        """`missed`: pieces may have come before. `on_more` is called when `text` has grown."""
        self.id = id
        self.text = ""
        self.missed = missed  # a piece is missing, so that the whole must be asked for
        self._on_more = on_more
        self._contradicted = False

    def add(self, start: int, piece: str) -> None:
        """Add a piece that begins at character `start`; one behind a gap is dropped, known text is not added again.

        Once a piece contradicts what has come before, nothing is added any more: the stored answer decides.
        """
        known = self.text[start : start + len(piece)]
        if start > len(self.text):
            self.missed = True
        elif piece[: len(known)] != known:
            self._contradicted = True
        if self._contradicted or start > len(self.text):
            return
        self.missed = False
        if len(piece) > len(known):
            self.text += piece[len(known) :]
            self._on_more()


class TokenFeed:
    """The texts that this process's streams wait for."""

    def __init__(self, redis_url: str | None, installation: Callable[[], str]) -> None:
        """`installation` reads the installation's name, which the channels have; without a broker nothing is heard."""
        self._redis_url, self._installation = redis_url, installation
        self._lock = threading.Lock()
        self._texts: dict[str, list[LiveText]] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, text: LiveText) -> None:
        """Adds to this text the pieces that come from now on."""
        with self._lock:
            self._texts.setdefault(text.id, []).append(text)
            if self._thread is None and self._redis_url is not None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, args=(self._redis_url,), name="tokens", daemon=True)
                self._thread.start()

    def shut(self, text: LiveText) -> None:
        """Stops adding pieces to this text."""
        with self._lock:
            texts = self._texts.get(text.id, [])
            if text in texts:
                texts.remove(text)
            if not texts:
                self._texts.pop(text.id, None)

    def close(self) -> None:
        """Return once nothing is heard any more."""
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self, redis_url: str) -> None:
        while not self._ended():
            try:
                installation = self._installation()
                with subscribed(redis_url, pieces_channel(installation)) as (client, subscription):
                    self._hear(client, subscription, asks_channel(installation))
            except (redis.RedisError, SQLAlchemyError) as error:
                log.warning("no live tokens", error=str(error))
                self._stopping.wait(RECONNECT_S)

    def _hear(self, client: redis.Redis, subscription: redis.client.PubSub, asks: str) -> None:
        """Until nobody streams, or an error."""
        last_stream_at = time.monotonic()
        with self._lock:
            for text in [text for texts in self._texts.values() for text in texts]:
                text.missed = True
        next_ask_at = 0.0
        while not self._stopping.is_set():
            message = subscription.get_message(timeout=TURN_S)
            if message is not None:
                self._add(message["data"])
            now = time.monotonic()
            if self._texts:
                last_stream_at = now
            elif now - last_stream_at > LINGER_S:
                return
            if now >= next_ask_at:
                missed = [one for one, texts in list(self._texts.items()) if any(text.missed for text in texts)]
                if missed:
                    client.publish(asks, encode_asks(missed))
                    next_ask_at = now + ASK_EVERY_S

    def _add(self, message: bytes) -> None:
        try:
            pieces = decode_pieces(message)
        except ValueError:
            log.warning("a message on the channel of tokens is none")
            return
        for request_id, start, text in pieces:
            for live in self._texts.get(request_id, ()):
                live.add(start, text)
        time.sleep(0)  # a green thread must let the streams write before it takes the next message

    def _ended(self) -> bool:
        with self._lock:
            if self._stopping.is_set() or not self._texts:
                self._thread = None
                return True
            return False


@contextmanager
def subscribed(redis_url: str, channel: str) -> Iterator[tuple[redis.Redis, redis.client.PubSub]]:
    """A connection for asks and a subscription of this channel; raises RedisError."""
    client = redis.Redis.from_url(
        redis_url,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
    )
    with client, client.pubsub(ignore_subscribe_messages=True) as subscription:  # type: ignore[no-untyped-call]
        subscription.subscribe(channel)
        yield client, subscription
