"""Detects the kind of server at a URL, the model that it serves, and its capabilities."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import httpx

from inference.remote.server_capabilities import ProbedServer, ServerCapabilities, ServerKind, client_name
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_fingerprint import announced
from inference.remote.server_load import ServerLoad, llamacpp_slots, load_from_metrics
from inference.remote.wire_formats import LLAMACPP_OPTIONS, OPENAI_OPTIONS, VLLM_OPTIONS

EngineChoice = Literal["auto", "vllm", "llamacpp", "transformers", "openai"]
ENGINES: tuple[EngineChoice, ...] = get_args(EngineChoice)

# The longest time that a request of a probe may take; a server that is loading its model does not answer. Not tuned.
PROBE_WITHIN_S = 30.0
TOKENIZES_WITHIN_S = 5.0  # as long as a call of the API waits for this answer (`server_tokens.ANSWER_WITHIN_S`)
NO_BUDGET = -2  # -1 asks for no budget; what knows budgets refuses this
# Each request of a probe has a connection of its own. uvicorn, in which transformers serve runs, closes a connection
# only after it has logged the exception behind its answer 500, and resets a request that was sent on it meanwhile.
ONE_REQUEST_EACH = httpx.Limits(max_keepalive_connections=0)


def connect(
    url: str,
    kind: EngineChoice = "auto",
    key: str | None = None,
    model: str | None = None,
    capacity_tokens: int | None = None,
    max_rows: int | None = None,
    directory: str | None = None,
) -> ProbedServer:
    """Probes the server at this URL for its `model`, or its `directory` or hub id; raises ServerUnusable."""
    with server_client(url, key) as client:
        probe = _Probe(client, base_url(url), key, model, capacity_tokens, max_rows, directory)
        return PROBES[probe.kind() if kind == "auto" else kind](probe)


def kind_of(url: str, key: str | None) -> ServerKind:
    """Returns the kind of the server at this URL; raises ServerUnusable."""
    with server_client(url, key) as client:
        return _Probe(client, base_url(url), key).kind()


def listed_model(url: str, key: str | None, wanted: str) -> Mapping[str, Any]:
    """Returns the server's entry of the wanted model, or of its only one; raises ServerUnusable."""
    with server_client(url, key) as client:
        return _Probe(client, base_url(url), key, wanted).served_model()


def base_url(url: str) -> str:
    """Returns a server's address without the path of its API."""
    return url.rstrip("/").removesuffix("/v1")


@contextmanager
def server_client(url: str, key: str | None, within_s: float = PROBE_WITHIN_S) -> Iterator[httpx.Client]:
    """Yields a client for a server, and raises its errors as ServerUnusable; an answer may take `within_s` seconds."""
    base, headers = base_url(url), {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(base_url=base, headers=headers, timeout=within_s, limits=ONE_REQUEST_EACH) as client:
            yield client
    except httpx.InvalidURL as error:
        raise ServerUnusable(base, f"it is no URL ({error})") from error
    except httpx.ReadTimeout as error:
        silent = f"{error.request.url.path} gave no answer within {within_s:g} s"
        raise ServerUnusable(base, f"{silent}; look at the server's log, or restart it") from error
    except httpx.HTTPError as error:
        raise ServerUnusable(base, f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Probe:
    """A client for the server that is probed, and the operator's configuration of it."""

    client: httpx.Client
    url: str
    key: str | None
    wanted: str | None = None  # the configured model name
    capacity_tokens: int | None = None
    max_rows: int | None = None
    directory: str | None = None  # the wanted model's directory or hub id

    def kind(self) -> ServerKind:
        """Returns the kind of the server, known by a value that only servers of this kind report."""
        owners = {model.get("owned_by") for model in self.models()}
        if "vllm" in owners:
            return "vllm"
        if "llamacpp" in owners or "total_slots" in self.json("/props"):
            return "llamacpp"
        if "/load_model" in self.json("/openapi.json").get("paths", {}):
            return "transformers"
        return "openai"

    def json(self, path: str, model: str | None = None) -> Mapping[str, Any]:
        """Returns the JSON object at this path, empty if there is none; `model` names one of the server's models."""
        answer = self.client.get(path, params={"model": model} if model else None)
        try:
            found = answer.json() if answer.is_success else {}
        except ValueError:
            return {}
        return found if isinstance(found, Mapping) else {}

    def models(self) -> list[Mapping[str, Any]]:
        """Returns the entries of `/v1/models`; raises ServerUnusable if the server refuses the key."""
        answer = self.client.get("/v1/models")
        if answer.status_code in (401, 403):
            raise ServerUnusable(self.url, f"it refuses the key (status {answer.status_code}): set MAGNUS_ENGINE_KEY")
        try:
            listed = answer.json()["data"] if answer.is_success else []
            return [model for model in listed if isinstance(model["id"], str)]
        except (ValueError, KeyError, TypeError):
            return []

    def served_model(self) -> Mapping[str, Any]:
        """Returns the wanted model, or the only one; raises ServerUnusable."""
        listed, wanted = self.models(), self.wanted
        for model in listed:
            if wanted in (model["id"], client_name(model["id"])):
                return model
        names = ", ".join(model["id"] for model in listed) or "none"
        if wanted is not None and listed:
            raise ServerUnusable(self.url, f"it does not serve {wanted}, but {names}")
        # adapters are listed too, and name their base model as `parent`
        bases = [model for model in listed if not model.get("parent")]
        if len(bases) != 1:
            raise ServerUnusable(self.url, f"it lists {names} as its models: name one with MAGNUS_MODEL_NAME")
        return bases[0]

    def page(self, path: str, model: str | None = None) -> str:
        """Returns the text at this path, empty if there is none; `model` names one of the server's models."""
        answer = self.client.get(path, params={"model": model} if model else None)
        return answer.text if answer.is_success else ""

    def completes(self, body: Mapping[str, Any]) -> bool:
        """Returns whether the server answers this request of `/v1/completions` without an error."""
        return self.client.post("/v1/completions", json=body).is_success

    def tokenizes(self, body: Mapping[str, Any]) -> bool:
        """Returns whether the server answers `/tokenize` with ids; a server that is silent about it does not."""
        try:
            answer = self.client.post("/tokenize", json=body, timeout=TOKENIZES_WITHIN_S)
            return answer.is_success and isinstance(answer.json()["tokens"], list)
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False

    def found(
        self,
        kind: ServerKind,
        model: str,
        capabilities: ServerCapabilities,
        *,
        max_positions: int | None = None,
        slots: int | None = None,
        model_directory: str | None = None,
    ) -> ProbedServer:
        """Returns the probed server with the operator's limits, where configured; it takes at most `slots` rows."""
        rows, listed = [most for most in (self.max_rows, slots) if most is not None], self.models()
        return ProbedServer(
            url=self.url,
            kind=kind,
            model=model,
            capabilities=capabilities,
            key=self.key,
            max_positions=max_positions,
            capacity_tokens=self.capacity_tokens or capabilities.kv_tokens,
            max_rows=min(rows, default=None),
            model_directory=model_directory,
            adapters=tuple(model["id"] for model in listed if model.get("parent")),
            announced=announced(listed),
        )


def _vllm(probe: _Probe) -> ProbedServer:
    model, load = probe.served_model(), load_from_metrics(probe.page("/metrics"))
    trial = {"model": model["id"], "prompt": [0], "max_tokens": 1, "temperature": 0.0}
    answer = probe.client.post("/v1/completions", json={**trial, "return_token_ids": True})
    if not answer.is_success:
        raise ServerUnusable(probe.url, f"it answers a trial with status {answer.status_code}")
    # an older vLLM ignores the field, one without a reasoning parser refuses any budget
    budgets = [{**trial, "thinking_token_budget": most} for most in (1, NO_BUDGET)]
    thinks = [probe.completes(one) for one in budgets] == [True, False]
    able = replace(
        _reported(load),
        token_ids_in=True,
        token_ids_out="token_ids" in answer.json()["choices"][0],
        streamed_usage=True,
        priority=probe.completes({**trial, "priority": 1}),
        cache_salt=probe.completes({**trial, "cache_salt": "a"}),
        options=VLLM_OPTIONS | {"pattern"} | ({"thinking_token_budget"} if thinks else set()),
        logprobs=True,
        response_format=True,
        prefix_cache=load.prefix_cache,
        tokenizer=probe.tokenizes({"model": model["id"], "prompt": "a"}),
        block_tokens=load.block_tokens or 1,
    )
    positions = _count(model.get("max_model_len"))
    return probe.found("vllm", model["id"], able, max_positions=positions, model_directory=_text(model.get("root")))


def _reported(load: ServerLoad) -> ServerCapabilities:
    """Returns the capabilities of an unknown server that reports this load in its metrics."""
    return ServerCapabilities(
        kv_tokens=load.kv_tokens,
        reports_running=load.running is not None,
        reports_waiting=load.waiting is not None,
        reports_preemptions=load.preemptions is not None,
        load_page="/metrics" if load.known else None,
    )


def _llamacpp(probe: _Probe) -> ProbedServer:
    listed = probe.models()
    # llama.cpp's router lists several models; a server of one model answers requests for any model
    strict = len(listed) > 1 or probe.directory is not None
    name = probe.served_model()["id"] if strict else probe.wanted
    props = probe.json("/props", name)
    name = name or (listed[0]["id"] if listed else _text(props.get("model_alias")))
    if name is None:
        raise ServerUnusable(probe.url, "it lists no model: name it with MAGNUS_MODEL_NAME")
    load, slots = load_from_metrics(probe.page("/metrics", name)), len(llamacpp_slots(probe.page("/slots", name)))
    settings = props.get("default_generation_settings")
    positions = _count(settings.get("n_ctx")) if isinstance(settings, Mapping) else None
    able = ServerCapabilities(
        token_ids_in=True,
        token_ids_out=True,
        streamed_usage=True,
        options=LLAMACPP_OPTIONS,
        logprobs=True,
        response_format=True,
        prefix_cache=True,  # each slot keeps its last prompt
        tokenizer=probe.tokenizes({"content": "a"}),
        # The server does not report whether its slots share one cache (--kv-unified, the default) or have one each. The
        # tokens of one slot fit in either case.
        kv_tokens=positions,
        kv_tokens_at_least=positions is not None,
        reports_running=load.running is not None or slots > 0,
        reports_waiting=load.waiting is not None,
        load_page="/metrics" if load.running is not None else "/slots" if slots else None,
    )
    rows = _count(props.get("total_slots")) or slots or 1
    return probe.found("llamacpp", name, able, max_positions=positions, slots=rows)


def _transformers(probe: _Probe) -> ProbedServer:
    pinned = _pinned_model(probe)
    if pinned is not None and probe.wanted not in (None, pinned, client_name(pinned)):
        raise ServerUnusable(probe.url, f"it does not serve {probe.wanted}, but {pinned}")
    name = pinned or probe.directory or probe.wanted or probe.served_model()["id"]
    able = ServerCapabilities(own_sampling=False)  # all rows of a batch are sampled as its first request asks
    return probe.found("transformers", name, able, model_directory=name)


def _pinned_model(probe: _Probe) -> str | None:
    """Returns the model that the server was started with, which it names only when it refuses another one."""
    body = {"model": "?", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
    answer = probe.client.post("/v1/chat/completions", json=body)
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return None
    before, _, rest = detail.partition("Server is pinned to '")
    return rest.partition("'")[0] or None if not before else None


def _openai(probe: _Probe) -> ProbedServer:
    model, load = probe.served_model(), load_from_metrics(probe.page("/metrics"))
    able = replace(_reported(load), options=OPENAI_OPTIONS)
    positions = _count(model.get("max_model_len"))
    return probe.found("openai", model["id"], able, max_positions=positions, model_directory=_text(model.get("root")))


PROBES: dict[ServerKind, Callable[[_Probe], ProbedServer]] = {
    "vllm": _vllm,
    "llamacpp": _llamacpp,
    "transformers": _transformers,
    "openai": _openai,
}


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
