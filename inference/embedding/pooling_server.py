"""Vectors and scores from a server of vLLM's pooling runner, by its calls `/v1/embeddings` and `/score`."""

from base64 import b64decode
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from inference.embedding.text_model import TextModel
from inference.embedding.vectors import LITTLE_ENDIAN, Vectors
from inference.remote.row_stream import BUSY, REFUSED
from inference.remote.server_errors import (
    MOST_LOSSES,
    RowRefused,
    ServerFailed,
    ServerLost,
    ServerLostOften,
    ServerUnusable,
)
from inference.remote.server_probe import base_url, listed_model

CHECK_S = 1.0  # seconds between two trials of a server that was lost. Not tuned


class _Item(BaseModel):
    index: int
    embedding: str | None = None  # base64
    score: float | None = None


class _Answer(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    data: list[_Item]


class _Unanswered(ServerFailed):
    """the server did not answer what it was sent: {reason}"""


class PoolingServer:
    """Encodes with one model of a server; `fault` says why the server was lost, and is None once a trial succeeds."""

    def __init__(self, url: str, key: str | None, model: TextModel, within_s: float) -> None:
        """Raises ServerUnusable if the server does not serve the model to its full length."""
        listed = listed_model(url, key, model.name)
        longest = listed.get("max_model_len")
        if isinstance(longest, int) and longest < model.max_tokens:
            raise ServerUnusable(url, f"it reads at most {longest} tokens of a text, and the model {model.max_tokens}")
        self._model, self._name = model, listed["id"]
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=base_url(url), headers=headers, timeout=within_s)
        self.fault: str | None = None
        self._lost = Event()
        self._losses = 0  # how often in turn the server answered neither what it was sent nor the trial after it
        Thread(target=self._try_again, name=f"trials of {url}", daemon=True).start()

    def encode(self, items: list[Any]) -> Vectors:
        """Returns the vector of each text, or the score of each pair.

        Raises RowRefused or ServerFailed if the server encodes a trial text but not these items, else ServerLost.
        Raises ServerLostOften once the server has been lost MOST_LOSSES times in turn without an answer.
        """
        try:
            values = self._asked(items)
        except (ServerLost, ServerFailed, RowRefused) as error:
            if not isinstance(error, ServerLost) and self._answers_trial():
                raise
            self.fault = error.reason
            self._lost.set()
            self._losses += isinstance(error, _Unanswered)
            if self._losses >= MOST_LOSSES:
                raise ServerLostOften(error.reason) from error
            raise ServerLost(error.reason) from error
        self._losses = 0
        return values

    def _asked(self, items: list[Any]) -> Vectors:
        body: dict[str, Any] = {"model": self._name, "truncate_prompt_tokens": -1}  # -1: cut at the model's length
        if self._model.scores_pairs:
            path, body["text_1"], body["text_2"] = "/score", *(list(texts) for texts in zip(*items, strict=True))
        else:
            path = "/v1/embeddings"
            body |= {"input": [self._model.prefix + text for text in items], "encoding_format": "base64"}
        try:
            answer = self._client.post(path, json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ServerLost(type(error).__name__) from error
        except httpx.HTTPError as error:  # a text may be the cause
            raise _Unanswered(type(error).__name__) from error
        if answer.status_code in REFUSED:
            raise RowRefused(f"status {answer.status_code}: {answer.text}")
        if not answer.is_success:
            kind = ServerLost if answer.status_code in BUSY else ServerFailed
            raise kind(f"status {answer.status_code}")
        return self._values(answer.content, len(items))

    def _values(self, content: bytes, count: int) -> Vectors:
        """Returns an answer's values in the order of the items; raises ServerFailed if they are missing or unusable."""
        try:
            found = {one.index: one for one in _Answer.model_validate_json(content).data}
            ordered = [found[number] for number in range(count)]
            if self._model.scores_pairs:
                values = np.asarray([one.score for one in ordered], np.float32)
            else:
                values = np.stack([np.frombuffer(b64decode(one.embedding or ""), LITTLE_ENDIAN) for one in ordered])
        except (ValidationError, KeyError, TypeError, ValueError) as error:
            raise ServerFailed(f"its answer cannot be read ({type(error).__name__})") from error
        if values.shape[1:] not in ((), (self._model.dimensions,)) or not np.isfinite(values).all():
            raise ServerFailed(f"its values have the shape {values.shape}, or are no numbers")
        return values

    def _answers_trial(self) -> bool:
        try:
            self._asked([(".", ".") if self._model.scores_pairs else "."])
        except (ServerLost, ServerFailed, RowRefused) as error:
            self.fault = error.reason
            return False
        return True

    def _try_again(self) -> None:
        pause = Event()
        while self._lost.wait():
            pause.wait(CHECK_S)
            if self._answers_trial():
                self._lost.clear()
                self.fault = None
