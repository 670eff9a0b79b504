"""Finds out what kind of server answers at a URL, which model it serves, and what it can do."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import httpx

from inference.remote.server_capabilities import ProbedServer, ServerCapabilities, ServerKind, client_name
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_load import load_from_metrics

EngineChoice = Literal["auto", "vllm", "llamacpp", "transformers", "openai"]
ENGINES: tuple[EngineChoice, ...] = get_args(EngineChoice)

# Longest that a probe's request may take: a server that loads its model answers nothing until then. Not tuned.
PROBE_WITHIN_S = 30.0


def connect(
    url: str,
    kind: EngineChoice = "auto",
    key: str | None = None,
    model: str | None = None,
    capacity_tokens: int | None = None,
    max_rows: int | None = None,
) -> ProbedServer:
    """Probe the server at this URL; `model` chooses one of several that it serves. Raises ServerUnusable."""
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(base_url=base, headers=headers, timeout=PROBE_WITHIN_S) as client:
            probe = _Probe(client, base)
            found = probe.kind() if kind == "auto" else kind
            return PROBES[found](probe, base, key, model, capacity_tokens, max_rows)
    except httpx.InvalidURL as error:
        raise ServerUnusable(base, f"it is no URL ({error})") from error
    except httpx.HTTPError as error:
        raise ServerUnusable(base, f"{type(error).__name__}: {error}") from error


class _Probe:
    """Questions to a server; an answer that is none is None."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client, self.url = client, url

    def kind(self) -> ServerKind:
        """What kind of server it is, by what only one kind has."""
        owners = {model.get("owned_by") for model in self.models()}
        if "vllm" in owners:
            return "vllm"
        if "llamacpp" in owners or "total_slots" in self.json("/props"):
            return "llamacpp"
        if "/load_model" in self.json("/openapi.json").get("paths", {}):
            return "transformers"
        return "openai"

    def json(self, path: str) -> Mapping[str, Any]:
        """The object at this path; an empty one if there is none."""
        answer = self._client.get(path)
        try:
            found = answer.json() if answer.is_success else {}
        except ValueError:
            return {}
        return found if isinstance(found, Mapping) else {}

    def models(self) -> list[Mapping[str, Any]]:
        """What `/v1/models` lists; raises ServerUnusable if it wants another key."""
        answer = self._client.get("/v1/models")
        if answer.status_code in (401, 403):
            raise ServerUnusable(self.url, f"it refuses the key (status {answer.status_code}): set MAGNUS_ENGINE_KEY")
        try:
            listed = answer.json()["data"] if answer.is_success else []
            return [model for model in listed if isinstance(model["id"], str)]
        except (ValueError, KeyError, TypeError):
            return []

    def served_model(self, wanted: str | None) -> Mapping[str, Any]:
        """The wanted model, or the only one; raises ServerUnusable."""
        listed = self.models()
        for model in listed:
            if wanted in (model["id"], client_name(model["id"])):
                return model
        names = ", ".join(model["id"] for model in listed) or "none"
        if wanted is not None and listed:
            raise ServerUnusable(self.url, f"it does not serve {wanted}, but {names}")
        # a server's adapters are listed behind their base model, which they name as their parent
        bases = [model for model in listed if not model.get("parent")]
        if len(bases) != 1:
            raise ServerUnusable(self.url, f"it lists {names} as its models: name one with MAGNUS_MODEL_NAME")
        return bases[0]

    def metrics(self) -> str:
        """The page of metrics, empty if there is none."""
        answer = self._client.get("/metrics")
        return answer.text if answer.is_success else ""

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """The answer to a small request."""
        return self._client.post(path, json=body)


def _vllm(
    probe: _Probe, url: str, key: str | None, wanted: str | None, capacity_tokens: int | None, max_rows: int | None
) -> ProbedServer:
    model = probe.served_model(wanted)
    load = load_from_metrics(probe.metrics())
    trial = {"model": model["id"], "prompt": [0], "max_tokens": 1, "temperature": 0.0}
    answer = probe.post("/v1/completions", {**trial, "return_token_ids": True})
    if not answer.is_success:
        raise ServerUnusable(url, f"it answers a trial with status {answer.status_code}")
    by_id = "token_ids" in answer.json()["choices"][0]
    return ProbedServer(
        url=url,
        kind="vllm",
        model=model["id"],
        key=key,
        max_positions=_count(model.get("max_model_len")),
        capacity_tokens=capacity_tokens or load.kv_tokens,
        max_rows=max_rows,
        model_directory=_text(model.get("root")),
        capabilities=ServerCapabilities(
            token_ids_in=True,
            token_ids_out=by_id,
            streamed_usage=True,
            priority=probe.post("/v1/completions", {**trial, "priority": 1}).is_success,
            top_k=True,
            logprobs=True,
            guided_output=True,
            tokenizer=probe.post("/tokenize", {"model": model["id"], "prompt": "a"}).is_success,
            kv_tokens=load.kv_tokens,
            reports_running=load.running is not None,
            reports_waiting=load.waiting is not None,
            reports_preemptions=load.preemptions is not None,
            block_tokens=load.block_tokens or 1,
        ),
    )


def _llamacpp(
    probe: _Probe, url: str, key: str | None, wanted: str | None, capacity_tokens: int | None, max_rows: int | None
) -> ProbedServer:
    props, load = probe.json("/props"), load_from_metrics(probe.metrics())
    listed = probe.models()
    name = wanted or (listed[0]["id"] if listed else _text(props.get("model_alias")))
    if name is None:
        raise ServerUnusable(url, "it lists no model: name it with MAGNUS_MODEL_NAME")
    slots = _count(props.get("total_slots")) or 1
    settings = props.get("default_generation_settings")
    positions = _count(settings.get("n_ctx")) if isinstance(settings, Mapping) else None
    return ProbedServer(
        url=url,
        kind="llamacpp",
        model=name,
        key=key,
        max_positions=positions,
        capacity_tokens=capacity_tokens or (positions * slots if positions else None),
        max_rows=min(max_rows or slots, slots),
        model_directory=None,
        capabilities=ServerCapabilities(
            token_ids_in=True,
            token_ids_out=True,
            streamed_usage=True,
            top_k=True,
            logprobs=True,
            guided_output=True,
            tokenizer=probe.post("/tokenize", {"content": "a"}).is_success,
            kv_tokens=positions * slots if positions else None,
            reports_running=load.running is not None,
            reports_waiting=load.waiting is not None,
        ),
    )


def _transformers(
    probe: _Probe, url: str, key: str | None, wanted: str | None, capacity_tokens: int | None, max_rows: int | None
) -> ProbedServer:
    pinned = _pinned_model(probe)
    if pinned is not None and wanted not in (None, pinned, client_name(pinned)):
        raise ServerUnusable(url, f"it does not serve {wanted}, but {pinned}")
    name = pinned or wanted or probe.served_model(None)["id"]
    return ProbedServer(
        url=url,
        kind="transformers",
        model=name,
        key=key,
        capacity_tokens=capacity_tokens,
        max_rows=max_rows,
        model_directory=name,
        capabilities=ServerCapabilities(own_sampling=False),  # all rows share the first request's
    )


def _pinned_model(probe: _Probe) -> str | None:
    """The model that the server was started with, which it names only when it is asked for another one."""
    body = {"model": "?", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
    answer = probe.post("/v1/chat/completions", body)
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return None
    before, _, rest = detail.partition("Server is pinned to '")
    return rest.partition("'")[0] or None if not before else None


def _openai(
    probe: _Probe, url: str, key: str | None, wanted: str | None, capacity_tokens: int | None, max_rows: int | None
) -> ProbedServer:
    model = probe.served_model(wanted)
    load = load_from_metrics(probe.metrics())
    return ProbedServer(
        url=url,
        kind="openai",
        model=model["id"],
        key=key,
        max_positions=_count(model.get("max_model_len")),
        capacity_tokens=capacity_tokens or load.kv_tokens,
        max_rows=max_rows,
        model_directory=_text(model.get("root")),
        capabilities=ServerCapabilities(
            kv_tokens=load.kv_tokens,
            reports_running=load.running is not None,
            reports_waiting=load.waiting is not None,
            reports_preemptions=load.preemptions is not None,
        ),
    )


Probe = Callable[[_Probe, str, str | None, str | None, int | None, int | None], ProbedServer]
PROBES: dict[ServerKind, Probe] = {
    "vllm": _vllm,
    "llamacpp": _llamacpp,
    "transformers": _transformers,
    "openai": _openai,
}


def _count(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
