"""Receives published pieces of answers, in one thread for all streams; without a broker, Postgres has the text."""

import threading
import time
from collections.abc import Callable
from functools import partial

import redis
import structlog
from sqlalchemy.exc import SQLAlchemyError

from models.connections.installation import Installation
from processes.broker import BrokerSubscription
from processes.listening import Channel
from protocol.streaming.token_messages import asks_channel, decode_pieces, encode_asks, pieces_channel

# Seconds between two requests to the workers for answers that lack a piece. A shorter interval closes gaps sooner; each
# request costs a worker some microseconds a stream. Not tuned.
ASK_EVERY_S = 0.5
TURN_S = 0.1  # longest single wait for a message; a stop and a first ask may take as long
LINGER_S = 10.0  # the thread listens on after the last stream, so that the next one need not connect; not tuned

log = structlog.get_logger()


class LiveText:
    """An answer's text, put together from pieces; the feed's thread adds them, the stream's thread reads `text`."""

    def __init__(self, id: str, on_more: Callable[[], None], *, missed: bool) -> None:
        """`missed`: pieces may have been published before. Calls `on_more` when `text` has grown."""
        self.id = id
        self.text = ""
        self.missed = missed  # a piece is missing, so the whole text must be requested
        self._on_more = on_more
        self._contradicted = False

    def add(self, start: int, piece: str) -> None:
        """Adds a piece that begins at character `start`; drops a piece behind a gap, ignores known text.

        After a contradiction nothing is added any more: the stored answer decides.
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
    """Adds published pieces to the texts of this process's streams."""

    def __init__(self, redis_url: str | None, installation: Callable[[], Installation]) -> None:
        """`installation` reads the installation, whose name is part of the channels' names."""
        self._redis_url, self.installation = redis_url, installation
        self._lock = threading.Lock()
        self._texts: dict[str, list[LiveText]] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, text: LiveText) -> None:
        """Adds all later pieces to this text."""
        with self._lock:
            if self._thread is None and self._redis_url is not None and not self._stopping.is_set():
                thread = threading.Thread(target=self._run, args=(self._redis_url,), name="tokens", daemon=True)
                thread.start()  # may fail; the next stream then starts another thread
                self._thread = thread
            self._texts.setdefault(text.id, []).append(text)

    def shut(self, text: LiveText) -> None:
        """Stops adding pieces to this text."""
        with self._lock:
            texts = self._texts.get(text.id, [])
            if text in texts:
                texts.remove(text)
            if not texts:
                self._texts.pop(text.id, None)

    def close(self) -> None:
        """Stops listening and waits until the thread has ended."""
        self._stopping.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self, redis_url: str) -> None:
        channel = Channel("tokens", partial(_Pieces, redis_url, self), (redis.RedisError, SQLAlchemyError))
        last_stream_at = time.monotonic()
        while not self._ended(last_stream_at):
            messages = channel.wait(TURN_S, self._stopping.wait)
            if messages is None and channel.subscribed:
                self._mark_all_missed()
            for message in messages or ():
                self._add(message)
            if self._texts:
                last_stream_at = time.monotonic()
        channel.close()

    def _mark_all_missed(self) -> None:
        with self._lock:
            for text in [text for texts in self._texts.values() for text in texts]:
                text.missed = True

    def missed(self) -> list[str]:
        """Returns the ids of streamed requests whose texts have a gap."""
        return [one for one, texts in list(self._texts.items()) if any(text.missed for text in texts)]

    def _add(self, message: bytes) -> None:
        try:
            pieces = decode_pieces(message)
        except ValueError:
            log.warning("unreadable message on the channel of tokens")
            return
        for request_id, start, text in pieces:
            for live in self._texts.get(request_id, ()):
                live.add(start, text)
        time.sleep(0)  # a green thread must let the streams write before it takes the next message

    def _ended(self, last_stream_at: float) -> bool:
        """Returns whether the thread ends: there was no stream for LINGER_S, or the process stops."""
        with self._lock:
            lingered = not self._texts and time.monotonic() - last_stream_at > LINGER_S
            if self._stopping.is_set() or lingered:
                self._thread = None
                return True
            return False


class _Pieces(BrokerSubscription):
    """Subscribes to the pieces that workers publish, and asks workers again for answers with missing pieces."""

    def __init__(self, redis_url: str, feed: TokenFeed) -> None:
        self._feed, self._installation, self._next_ask_at = feed, feed.installation(), 0.0
        super().__init__(redis_url, pieces_channel(self._installation.name))

    def wait(self, within_s: float) -> list[bytes]:
        """Returns the next message, or an empty list after `within_s`."""
        now = time.monotonic()
        if now >= self._next_ask_at and (missed := self._feed.missed()):
            asks = encode_asks(missed, self._installation.secret)
            self.client.publish(asks_channel(self._installation.name), asks)
            self._next_ask_at = now + ASK_EVERY_S
        return super().wait(within_s)
