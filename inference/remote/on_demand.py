"""For servers that load a model when a request names it: tells which models are loaded, and how long a change takes.

llama-swap, Ollama and llama.cpp's router say what they have loaded; other servers do not. llama-swap has an address for
each model and passes requests on to that model's server, so the model's server is probed and used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from inference.remote.server_capabilities import ServerKind, client_name
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_probe import EngineChoice, base_url, kind_of, server_client

# The longest time in which a server loads a model; large ones are read for many minutes. Not tuned.
LOADS_WITHIN_S = 1800.0
LLAMA_SWAP = "/running"
# For the pages of llama-swap, Ollama and llama.cpp's router that list loaded models: how to read the models' names.
LOADED: Mapping[str, Callable[[Any], list[str]]] = {
    LLAMA_SWAP: lambda page: [one["model"] for one in page["running"] if one["state"] == "ready"],
    "/api/ps": lambda page: [one["name"] for one in page["models"]],
    "/models": lambda page: [one["id"] for one in page["data"] if one["status"]["value"] == "loaded"],
}


@dataclass(frozen=True, slots=True)
class OnDemandServer:
    """The address of a server that loads models on demand, its kind, and the page of LOADED that it has, if any."""

    url: str
    kind: ServerKind
    key: str | None
    page: str | None

    def address(self, model: str) -> str:
        """Returns the address under which this model is served."""
        return f"{self.url}/upstream/{model}" if self.page == LLAMA_SWAP else self.url

    def loaded(self) -> frozenset[str]:
        """Returns the names of the models that the server says it has loaded; raises ServerUnusable."""
        return frozenset() if self.page is None else _loaded_in(self.url, self.key, self.page) or frozenset()

    def change_s(self, model: str, directory: str, clock: Callable[[], float] = perf_counter) -> float:
        """Makes the server load a model; returns by how many seconds this delays an answer. Raises ServerUnusable."""
        began = clock()
        self._ask(model, directory)
        first = clock()
        self._ask(model, directory)
        return max(0.0, (first - began) - (clock() - first))

    def _ask(self, model: str, directory: str) -> None:
        """Asks for one token; or llama-swap for a list, which loads the model whatever name its server knows it by."""
        with server_client(self.address(model), self.key, LOADS_WITHIN_S) as client:
            if self.page == LLAMA_SWAP:
                answer = client.get("/v1/models")
            else:
                named = directory if self.kind == "transformers" else model
                turns = [{"role": "user", "content": "."}]
                answer = client.post(
                    "/v1/chat/completions", json={"model": named, "messages": turns, "max_tokens": 1, "temperature": 0}
                )
            # 400: the model has no chat template, but it was loaded
            if not answer.is_success and answer.status_code != 400:
                raise ServerUnusable(self.url, f"it answers a request for {model} with status {answer.status_code}")


def find_server(url: str, kind: EngineChoice, key: str | None) -> OnDemandServer:
    """Returns the server at this URL; raises ServerUnusable."""
    base = base_url(url)
    page = next((page for page in LOADED if _loaded_in(base, key, page) is not None), None)
    return OnDemandServer(base, kind_of(base, key) if kind == "auto" else kind, key, page)


def _loaded_in(url: str, key: str | None, page: str) -> frozenset[str] | None:
    """Returns the models in one of LOADED, or None if the server has no such page."""
    with server_client(url, key) as client:
        answer = client.get(page)
    try:
        return frozenset(map(client_name, LOADED[page](answer.json()))) if answer.is_success else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
