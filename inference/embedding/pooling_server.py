"""Vectors and scores from a server of vLLM's pooling runner, by its calls `/v1/embeddings` and `/score`."""

from base64 import b64decode
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from inference.embedding.text_model import TextModel
from inference.embedding.vectors import LITTLE_ENDIAN, Vectors
from inference.remote.server_errors import RowRefused, ServerLost, ServerUnusable
from inference.remote.server_probe import base_url, listed_model

CHECK_S = 1.0  # seconds between two trials of a server that was lost. Not tuned
REFUSED = frozenset({400, 413, 422})


class _Item(BaseModel):
    index: int
    embedding: str | None = None  # base64
    score: float | None = None


class _Answer(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    data: list[_Item]


class PoolingServer:
    """Encodes with one model of a server; after it was lost, `fault` says why, until a trial succeeds."""

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
        Thread(target=self._try_again, name=f"trials of {url}", daemon=True).start()

    def encode(self, items: list[Any]) -> Vectors:
        """Returns the vector of each text, or the score of each pair; raises ServerLost or RowRefused."""
        try:
            return self._asked(items)
        except ServerLost as error:
            self.fault = error.reason
            self._lost.set()
            raise

    def _asked(self, items: list[Any]) -> Vectors:
        body: dict[str, Any] = {"model": self._name, "truncate_prompt_tokens": -1}  # to the model's length
        if self._model.scores_pairs:
            path, body["text_1"], body["text_2"] = "/score", *(list(texts) for texts in zip(*items, strict=True))
        else:
            path = "/v1/embeddings"
            body |= {"input": [self._model.prefix + text for text in items], "encoding_format": "base64"}
        try:
            answer = self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise ServerLost(type(error).__name__) from error
        if answer.status_code in REFUSED:
            raise RowRefused(f"status {answer.status_code}: {answer.text}")
        if not answer.is_success:
            raise ServerLost(f"status {answer.status_code}")
        return self._values(answer.content, len(items))

    def _values(self, content: bytes, count: int) -> Vectors:
        """Returns an answer's values in the order of the items; raises ServerLost for anything else."""
        try:
            found = {one.index: one for one in _Answer.model_validate_json(content).data}
            ordered = [found[number] for number in range(count)]
            if self._model.scores_pairs:
                values = np.asarray([one.score for one in ordered], np.float32)
            else:
                values = np.stack([np.frombuffer(b64decode(one.embedding or ""), LITTLE_ENDIAN) for one in ordered])
        except (ValidationError, KeyError, TypeError, ValueError) as error:
            raise ServerLost(f"its answer cannot be read ({type(error).__name__})") from error
        if values.shape[1:] not in ((), (self._model.dimensions,)) or not np.isfinite(values).all():
            raise ServerLost(f"its values have the shape {values.shape}, or are no numbers")
        return values

    def _try_again(self) -> None:
        trial = [(".", ".") if self._model.scores_pairs else "."]
        pause = Event()
        while self._lost.wait():
            pause.wait(CHECK_S)
            try:
                self._asked(trial)
            except (ServerLost, RowRefused) as error:
                self.fault = error.reason
            else:
                self._lost.clear()
                self.fault = None
