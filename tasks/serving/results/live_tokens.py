"""Streams the tokens of rows while they are generated: the engine's thread collects them, another publishes their text.

A step without streamed rows costs two comparisons. No piece of text is stored or sent twice: a web process that misses
one asks for the whole text, and the answer in Postgres is complete. No text is written to a log.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import monotonic

import redis
import structlog

from inference.answer_text import GrowingText
from inference.engine_requests import Generated
from inference.serving_engine import ServingEngine
from models.connections.installation import Installation
from processes.broker import PING_AFTER_S, BrokerSubscription, broker_client
from processes.listening import Channel, Listener
from protocol.streaming.token_messages import Piece, asks_channel, decode_asks, encode_pieces, pieces_channel

# After a failure nothing is published for this long, because each try may block for BROKER_TIMEOUT_S. Not tuned.
PAUSE_S = 2.0

Decode = Callable[..., str]  # the method `decode` of `inference.prompts.request_tokens.RequestTokens`

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The tokens that streamed rows gained since the last step; rows are named by their ids."""

    generated: Mapping[str, Generated]
    begun: frozenset[str]  # rows that are streamed from now on; `generated` has every token of theirs
    wanted: frozenset[str]  # rows whose whole text is published, because a reader lacks the beginning
    gone: frozenset[str]  # rows that no longer run


class LiveRows:
    """The streamed rows of one engine; only the engine's thread uses it, but any thread may call `ask`."""

    def __init__(self, publish: Callable[[StepTokens], None]) -> None:
        """`publish` gets the tokens of each step and must return at once."""
        self._publish = publish
        self._since: dict[str, int] = {}  # number of tokens already published, by row
        self._begun: set[str] = set()
        self._asked: SimpleQueue[Collection[str]] = SimpleQueue()

    def ask(self, ids: Collection[str]) -> None:
        """Lets the texts of these requests, as far as they run, be published again from their beginning."""
        self._asked.put(ids)

    def begin(self, ids: Collection[str]) -> None:
        """Begins to stream these rows, which enter the engine before the next `collect`."""
        self._since.update(dict.fromkeys(ids, 0))
        self._begun.update(ids)

    def collect(self, engine: ServingEngine) -> None:
        """Publish what the streamed rows generated since the last call."""
        if not self._since and self._asked.empty():
            return
        asked: set[str] = set()
        while not self._asked.empty():
            asked.update(self._asked.get())
        new = asked - self._since.keys()
        self.begin(new)
        generated = engine.generated(self._since)
        gone = self._since.keys() - generated.keys()
        running = generated.keys()
        for row_id in gone:
            del self._since[row_id]
        for row_id, row in generated.items():
            self._since[row_id] += len(row.ids)
        step = StepTokens(
            generated, frozenset(self._begun & running), frozenset(asked & running), frozenset(gone - new)
        )
        if step.generated or step.gone:
            self._publish(step)
        self._begun.clear()


class LiveTexts:
    """The texts of running rows, each published as it grows. No I/O."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._rows: dict[str, GrowingText] = {}

    def add(self, step: StepTokens) -> list[Piece]:
        """Adds the tokens of a step; returns the pieces of text that can be published."""
        pieces = []
        for row_id, generated in step.generated.items():
            if row_id in step.begun:
                decode = partial(self._decode, continues=True) if generated.continues else self._decode
                self._rows[row_id] = GrowingText(decode, generated.stop)
            row = self._rows[row_id]
            start = row.length
            new = row.add_ids(generated.ids) if generated.text is None else row.set_text(generated.text)
            if row_id in step.wanted:
                start, new = 0, row.text
            if new:
                pieces.append((row_id, start, new))
        for row_id in step.gone:
            self._rows.pop(row_id, None)
        return pieces


class TokenPublisher(Thread):
    """A thread that publishes the text of each step; any thread may call `put`."""

    def __init__(self, redis_url: str, installation: str, decode: Decode) -> None:
        super().__init__(name="token publisher", daemon=True)
        self._client, self._channel = broker_client(redis_url), pieces_channel(installation)
        self._texts = LiveTexts(decode)
        self._steps: SimpleQueue[StepTokens | None] = SimpleQueue()  # None stops the thread
        self._paused_until = 0.0

    def put(self, step: StepTokens) -> None:
        """Hand over the tokens of a step; the thread publishes their text."""
        self._steps.put(step)

    def stop(self) -> None:
        """Ends the thread; returns once all steps put before are published."""
        self._steps.put(None)
        self.join()

    def run(self) -> None:
        """Publish queued tokens until stopped."""
        while True:
            taken = [self._steps.get()]
            while not self._steps.empty():
                taken.append(self._steps.get())
            steps = [step for step in taken if step is not None]
            if steps:
                try:
                    self._send([piece for step in steps for piece in self._texts.add(step)])
                except Exception:  # an error of one row must not end the thread; its stream ends from Postgres
                    log.exception("tokens not published")
            if None in taken:
                return self._client.close()

    def _send(self, pieces: Sequence[Piece]) -> None:
        if not pieces or monotonic() < self._paused_until:
            return
        try:
            self._client.publish(self._channel, encode_pieces(pieces))
        except redis.RedisError as error:
            self._paused_until = monotonic() + PAUSE_S
            log.warning("broker away", pause_s=PAUSE_S, error=str(error))


def ask_listener(
    redis_url: str, installation: Installation, on_asks: Callable[[Sequence[str]], None]
) -> Listener[bytes]:
    """Returns the thread that hears which answers web processes want from their beginning."""

    def pass_on(messages: list[bytes]) -> None:
        for message in messages:
            try:
                on_asks(decode_asks(message, installation.secret))
            except ValueError:
                log.warning("unreadable message on the channel of asks")

    subscribe = partial(BrokerSubscription, redis_url, asks_channel(installation.name))
    return Listener("asks", Channel("asks for tokens", subscribe, (redis.RedisError,)), pass_on, wait_s=PING_AFTER_S)
