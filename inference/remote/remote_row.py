"""One row in a server: its tokens so far, and the request that resumes it. Does no I/O."""

from dataclasses import dataclass, field, replace
from threading import Lock

from inference.answer_text import Detokenizer, ends_in_stop_string
from inference.engine_requests import DecodingRequest, FinishedRow, FinishReason, Generated, TokenLogprob
from inference.remote.server_errors import RowRefused, ServerGarbage, ServerLost
from inference.remote.wire_formats import Chunk, RowRequest


@dataclass(eq=False, slots=True)
class RemoteRow:
    """The tokens and the state of a row, which ends when `reason` is set; instants are those of `monotonic`.

    The stream's thread adds tokens, the engine's thread reads them and may take the row out.
    """

    sequence: DecodingRequest
    limit: int  # the most generated tokens over all slices
    until: int  # the most generated tokens at the end of this run
    by_ids: bool  # the server takes and gives token ids
    resumes: bool
    inserted_at: float
    ids: list[int] = field(default_factory=list)  # all generated tokens, those of earlier slices included
    logprobs: list[TokenLogprob] = field(default_factory=list)  # one for each of `ids`, if the request asks for them
    text: str = ""  # the answer so far, if the server gives no ids
    counted: int = 0  # the number of tokens in `text`
    # tokens of the prompt that the server found cached when it began the answer; None if it did not say
    cached: int | None = None
    first_token_at: float | None = None
    reason: FinishReason | None = None
    refusal: str = ""
    streaming: bool = False  # a response of the server is being read
    lost: bool = False  # the server was lost, or sent nothing for too long, while it served this row
    broke: bool = False  # the row's stream broke off, and the server then answered a trial
    said: FinishReason | None = None  # the server's reason for ending the row, which counts once there is a token
    accounted: int = 0  # tokens that the engine's figures include
    _taken_out: bool = field(init=False, default=False)
    _lock: Lock = field(init=False, default_factory=Lock)  # ensures that a row ends or is taken out, never both

    @property
    def tokens(self) -> int:
        """The number of generated tokens over all slices."""
        return len(self.ids) if self.by_ids else self.counted

    @property
    def runs(self) -> bool:
        """Whether the row has neither ended nor been taken out."""
        return self.reason is None and not self._taken_out

    def take_out(self) -> bool:
        """Takes the row out of this server, so that it gets no more tokens; returns False if it has ended already."""
        with self._lock:
            self._taken_out = self.reason is None
            return self._taken_out

    def end(self, reason: FinishReason, refusal: str = "") -> None:
        """Ends the row, unless it has ended or was taken out."""
        with self._lock:
            if self.runs:
                self.reason, self.refusal = reason, refusal

    def request(self) -> RowRequest:
        """Returns the request that resumes the row, or restarts it if the server takes no token ids."""
        if not self.resumes:
            self.ids, self.logprobs, self.text, self.counted = list(self.sequence.generated_ids), [], "", 0
        return RowRequest(self.sequence, tuple(self.ids), self.until - len(self.ids))

    def take(self, chunk: Chunk, now: float, detokenizer: Detokenizer | None) -> FinishReason | None:
        """Adds a chunk; returns the reason if it ends the row. Raises a ServerFault if it is not what was asked for."""
        with self._lock:
            if self._taken_out:
                return None
            if chunk.token_ids or chunk.text:
                self.first_token_at = self.first_token_at or now
            if self.cached is None and chunk.cached is not None:
                self.cached = min(chunk.cached, len(self.sequence.prompt_ids))
            ended = self._take_ids(chunk, detokenizer) if self.by_ids else self._take_text(chunk)
            if chunk.reason == "limit" and self.by_ids and len(self.ids) < self.until and ended is None:
                raise ServerLost(f"it ended the row at {len(self.ids)} of {self.until} tokens")
            self.said = chunk.reason or self.said
            if ended is None and self.said is not None and (self.tokens or self.text or chunk.counted):
                ended = self._reason(self.said)
            self.reason = self.reason or ended
            return ended

    def _take_ids(self, chunk: Chunk, detokenizer: Detokenizer | None) -> FinishReason | None:
        """Adds the ids of a chunk; returns the reason if a stop token or a stop string ends the row."""
        stop, top = self.sequence.stop, self.sequence.top_logprobs
        if top is not None and tuple(one.id for one in chunk.logprobs) != chunk.token_ids:
            raise RowRefused("it does not say the log probability of each token")
        for number, token in enumerate(chunk.token_ids):
            if len(self.ids) >= self.until:
                raise ServerGarbage("more tokens than were asked for")
            self.ids.append(token)
            if top is not None:
                known = chunk.logprobs[number]
                self.logprobs.append(replace(known, likeliest=known.likeliest[:top]))
            if token in self.sequence.sampling.stop_token_ids:  # checked here too, because some servers ignore them
                return "eos"
            # checked here too, because a stop string may have begun before the row was resumed
            if stop and detokenizer is not None and ends_in_stop_string(detokenizer, self.ids, stop):
                return "stop"
        return None

    def _take_text(self, chunk: Chunk) -> FinishReason | None:
        # a stop string that was not there before ends in this chunk
        before = max(0, len(self.text) - max(map(len, self.sequence.stop), default=0))
        self.text += chunk.text
        self.counted = chunk.counted if chunk.counted is not None else self.counted + bool(chunk.text)
        if self.counted > self.until:
            raise ServerGarbage("more tokens than were asked for")
        return "stop" if any(self.text.find(stop, before) >= 0 for stop in self.sequence.stop) else None

    def _reason(self, reason: FinishReason) -> FinishReason:
        """Returns `unfinished` for a row that reached only the limit of its slice."""
        return "unfinished" if reason == "limit" and self.until < self.limit else reason

    def generated(self, since: int) -> Generated:
        """Returns the tokens after the first `since`, or the whole text if the server gives no ids."""
        if self.by_ids:
            return Generated(tuple(self.ids[since:]), None, self.sequence.stop, self.sequence.continues)
        return Generated((), self.text, self.sequence.stop)

    def result(self, reason: FinishReason | None = None) -> FinishedRow:
        """Returns the row's result, with `reason` unless it has ended by itself."""
        reason, sequence = self.reason or reason or "removed", self.sequence
        # a failed row's new tokens may be wrong, and a row that cannot resume restarts with the tokens it came with
        if reason == "failed" or (reason == "unfinished" and not self.resumes):
            restart = sequence.id, sequence.generated_ids, reason, None, 0, self.refusal, sequence.logprobs
            return FinishedRow(*restart)
        text, logprobs = None if self.by_ids else self.text, tuple(self.logprobs)
        known = sequence.id, tuple(self.ids), reason, text, self.counted, self.refusal, logprobs
        return FinishedRow(*known, cached_tokens=self.cached)

    def rest(self) -> DecodingRequest:
        """Returns the sequence that resumes the row elsewhere."""
        if not self.resumes:
            return self.sequence
        return replace(self.sequence, generated_ids=tuple(self.ids), logprobs=tuple(self.logprobs))
