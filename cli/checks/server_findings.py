"""Checks an inference server for `magnus doctor --engine`: what it can do, and what does not work with it."""

from collections.abc import Iterator

from cli.checks.doctor_checks import Finding
from inference.engine_errors import UnreadableModel
from inference.remote.server_capabilities import ProbedServer, tokenizer_source
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_probe import connect
from inference.remote.server_tokens import load_request_tokens
from settings import Settings


def engine_findings(settings: Settings, url: str) -> Iterator[Finding]:
    """Yields what an inference server can and cannot do; the finding of an unusable server has a remedy."""
    try:
        server = connect(url, key=settings.engine_key_text, model=settings.model_name)
    except ServerUnusable as error:
        yield Finding("server", str(error), "start it, or correct the address; MAGNUS_ENGINE_KEY holds its key")
        return
    able = server.capabilities
    yield Finding("server", f"{server.kind} at {server.url}")
    yield Finding("model", ", with the adapter ".join((server.client_name, *server.adapters)))
    yield _tokenizer(settings, server)
    tokens = "not known" if server.capacity_tokens is None else f"{server.capacity_tokens:,} tokens"
    yield Finding("memory", f"{tokens}, sum over rows, in blocks of {able.block_tokens}")
    abilities = {
        "token ids in": able.token_ids_in,
        "token ids out": able.token_ids_out,
        "counts while streaming": able.streamed_usage,
        "priority": able.priority,
        "sampling of each request": able.own_sampling,
        "top_k": "top_k" in able.options,
        "logprobs": able.logprobs,
        "response_format": able.response_format,
        "prefix cache": able.prefix_cache,
        "salts of that cache": able.cache_salt,
        "tokenizer over HTTP": able.tokenizer,
        "reports running rows": able.reports_running,
        "reports waiting rows": able.reports_waiting,
        "reports preemptions": able.reports_preemptions,
    }
    for ability, has in abilities.items():
        yield Finding(ability, "yes" if has else "no")
    for loss in able.losses():
        yield Finding("lost", loss)


def _tokenizer(settings: Settings, server: ProbedServer) -> Finding:
    remedy = "set MAGNUS_MODEL to a directory with the model's tokenizer.json, or to its hub id"
    try:
        source = tokenizer_source(server, settings.chosen_model)
        load_request_tokens(source, None)
    except (ServerUnusable, UnreadableModel) as error:
        return Finding("tokenizer", str(error), remedy)
    return Finding("tokenizer", f"from {source}")
