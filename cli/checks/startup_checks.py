"""The checks of `magnus up` before it starts, and of `magnus doctor`: each finding names setting and remedy."""

import socket
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import get_args

import redis
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from cli.hosting.worker_devices import cuda_devices
from extras import missing
from inference.embedding.text_model import read_text_model
from inference.engine_errors import InferenceError
from inference.model_directory.adapter_files import read_adapters
from inference.model_directory.model_checks import check_model
from inference.prompts.prompt_format import load_prompt_format
from inference.remote.server_capabilities import tokenizer_source
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_probe import connect, kind_of
from inference.remote.server_tokens import is_server
from settings import AskingTheModel, Settings

HASHING = "hashing"
UNSUPPORTED_MODES = {  # by INFO's mode, because Celery's queues and our pub/sub need one server with all keys
    "cluster": "a Redis Cluster, which is not supported",
    "sentinel": "a Redis Sentinel, which stores nothing and is not supported",
}


def problems(settings: Settings) -> Iterator[str]:
    """Yields a line for each problem that keeps these settings from working; starts and changes nothing."""
    yield from missing_extras(settings)
    found = model_problem(settings.model, needs_weights=not settings.engines)
    for problem in (found, encoder_problem(settings.encoder), predictor_problem(settings)):
        if problem is not None:
            yield problem
    yield from adapter_problems(settings)
    yield from further_model_problems(settings)
    yield from embedding_problems(settings.text_models, settings.lms)
    yield from device_problems(settings.devices)


def missing_extras(settings: Settings) -> Iterator[str]:
    """Yields a line for each of these settings that needs an extra which is not installed."""
    needs = {"`magnus up` without --engine": starts_own_workers(settings), "MAGNUS_EMBED": settings.embed is not None}
    yield from filter(None, (missing(what) for what, needed in needs.items() if needed))
    yield from missing_for_learning(settings)


def missing_for_learning(settings: Settings) -> Iterator[str]:
    """Yields a line for each setting of the predictor or the trainer that needs an extra which is not installed."""
    needs = {
        f"MAGNUS_ENCODER={settings.encoder}": settings.encoder != HASHING,
        f"MAGNUS_PREDICTOR={settings.predictor}": settings.predictor in get_args(AskingTheModel),
    }
    yield from filter(None, (missing(what) for what, needed in needs.items() if needed))


def starts_own_workers(settings: Settings) -> bool:
    """Returns whether `magnus up` starts workers of our own engine beside those of engine servers."""
    return settings.workers > 0 if "workers" in settings.model_fields_set else not settings.engines


def model_problem(model: str, needs_weights: bool = True) -> str | None:
    """Returns why the model, or without `needs_weights` its tokenizer, cannot be loaded from its files, else None."""
    if is_server(model):
        if not needs_weights:
            return None
        return f"MAGNUS_MODEL: {model} is a server's tokenizer; workers of our own need the model's directory or hub id"
    remedy = "MAGNUS_MODEL: name a whole Hugging Face model directory, a hub id, or a model of `magnus model fetch`"
    try:
        if needs_weights:
            check_model(model)
        load_prompt_format(model)
    except InferenceError as error:
        return f"{error}; {remedy}"
    return None


def adapter_problems(settings: Settings) -> Iterator[str]:
    """Yields why the adapters cannot be served according to their files; loading shows whether they fit the model."""
    if settings.adapters is None:
        return
    remedy = "MAGNUS_ADAPTERS: name a directory with a subdirectory for each LoRA adapter, as peft saves it"
    try:
        adapters = read_adapters(str(settings.adapters))
    except InferenceError as error:
        yield f"{error}; {remedy}"
        return
    own = (*settings.lms, *settings.further_model_names, *settings.text_models)
    for name in own:
        if name in adapters:
            yield f"MAGNUS_ADAPTERS: {name} is also the name of a model; rename the adapter's directory"


def further_model_problems(settings: Settings) -> Iterator[str]:
    """Yields why models of MAGNUS_MODELS cannot be served according to their files or names."""
    names = [Path(one.strip()).name for one in (settings.models or "").split(",") if one.strip()]
    names += [settings.model_name or Path(settings.model).name, *settings.further_model_names]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"MAGNUS_MODELS: {name} is the name of several models; rename a directory, or set MAGNUS_MODEL_NAME"
    _, *further = settings.lms.values()
    if further and settings.adapters is not None:
        yield "MAGNUS_MODELS: workers with several models serve no LoRA adapters; unset it, or MAGNUS_ADAPTERS"
    for directory in further:
        if problem := model_problem(directory, needs_weights=not settings.engines):
            yield problem.replace("MAGNUS_MODEL:", "MAGNUS_MODELS:")


def embedding_problems(models: Mapping[str, str], lms: Collection[str]) -> Iterator[str]:
    """Yields why models for vectors or scores cannot be served, by their files; `models` maps names to directories."""
    remedy = "MAGNUS_EMBED: name sentence-transformers models, or run `magnus model fetch minilm` for all-MiniLM-L6-v2"
    for name, directory in models.items():
        try:
            read_text_model(name, directory)
        except InferenceError as error:
            yield f"{error}; {remedy}"
        if name in lms:
            yield f"MAGNUS_EMBED: {name} is also the name of a served LM; set MAGNUS_MODEL_NAME"


def encoder_problem(encoder: str) -> str | None:
    """Returns why the text encoder cannot be loaded according to its files or the hub, else None."""
    remedy = "MAGNUS_ENCODER: write hashing, minilm (`magnus model fetch minilm`), or a sentence-transformers model"
    if encoder == HASHING:
        return None
    if Path(encoder).is_dir():
        if any((Path(encoder) / name).is_file() for name in ("modules.json", "config.json")):
            return None
        return f"{encoder} is no model directory; {remedy}"
    name = encoder if "/" in encoder else f"sentence-transformers/{encoder}"
    try:
        hf_hub_download(name, "config.json", etag_timeout=5)
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        why = f"the hub has no such model or cannot be reached ({type(error).__name__})"
        return f"{encoder} is no directory, and {why}; {remedy}"
    return None


def predictor_problem(settings: Settings) -> str | None:
    """Returns why the length predictor cannot ask the language model, else None."""
    name = settings.predictor
    if name not in get_args(AskingTheModel):
        return None
    remedy = "set MAGNUS_MODEL to a model directory or hub id with weights, or MAGNUS_PREDICTOR to forest"
    if settings.engines and settings.chosen_model is None:
        return f"MAGNUS_PREDICTOR: {name} asks the model itself, and no server can be asked so; {remedy}"
    wrong = model_problem(settings.model)
    if wrong is not None:
        return f"MAGNUS_PREDICTOR: {name} asks the model itself, but {wrong.rpartition('; ')[0] or wrong}; {remedy}"
    return None


def device_problems(devices: str) -> Iterator[str]:
    """Yields a line for each named CUDA device that this machine does not have."""
    if "cuda" not in devices:
        return
    gpus = cuda_devices()
    for name in (name.strip() for name in devices.split(",")):
        kind, _, index = name.partition(":")
        if kind == "cuda" and int(index or 0) >= gpus:
            has = f"{gpus} CUDA devices" if gpus else "no CUDA device that torch can use"
            yield f"MAGNUS_DEVICES: {name} does not exist, this machine has {has}; write auto, cpu, or those that exist"


def port_problem(host: str, port: int, setting: str) -> str | None:
    """Returns why nobody can listen on this port, with the remedy, or None if it is free."""
    try:
        bind(host, port)
    except socket.gaierror as error:
        return f"{host} is no address of this machine ({error.strerror}); set MAGNUS_HOST, for example to 127.0.0.1"
    except PermissionError:
        return f"port {port} of {host} is for root alone; set {setting} to 1024 or more"
    except OSError as error:
        return (
            f"port {port} of {host} is taken or cannot be used ({error.strerror}); stop what uses it, or set {setting}"
        )
    return None


def bind(host: str, port: int) -> int:
    """Listen for a moment on this port, or on a free one for 0; returns its number. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        free: int = probe.getsockname()[1]
        return free


def broker_problem(url: str) -> str | None:
    """Returns why the broker cannot be used, with the remedy, or None if it takes writes."""
    remedy = "check MAGNUS_REDIS_URL, and that the server runs"
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
            client.ping()
            server = client.info("server")
            mode = server.get("redis_mode") or server.get("server_mode")  # Redis's field, and Valkey's
            if mode in UNSUPPORTED_MODES:
                return f"the broker is {UNSUPPORTED_MODES[mode]}: give MAGNUS_REDIS_URL the address of a single primary"
            if client.info("replication").get("role") == "slave":
                return "the broker is a replica, which takes no messages: give MAGNUS_REDIS_URL the primary's address"
            try:
                client.set("magnus-writable", 1, px=1000)
            except redis.ResponseError as error:
                return f"the broker takes no writes: {error}; give it memory, disk space or the rights that it lacks"
    except redis.AuthenticationError:
        return "the broker refuses the password: check the one in MAGNUS_REDIS_URL"
    except redis.BusyLoadingError:
        return "the broker still loads its data: try again in a moment"
    except redis.ResponseError as error:
        return f"the broker refuses: {error}; check password and database number in MAGNUS_REDIS_URL"
    except (redis.RedisError, ValueError, OSError) as error:
        return f"no answer from the broker ({type(error).__name__}: {error}); {remedy}"
    return None


def with_engines(settings: Settings) -> Settings:
    """Returns the settings with the servers' model and tokenizer, where the operator has set none.

    With MAGNUS_MODELS each server loads those of the named models that it has. Raises ServerUnusable.
    """
    for url in settings.engines:
        if settings.models is not None and settings.chosen_model is not None:
            kind_of(url, settings.engine_key_text)
            continue
        server = connect(url, key=settings.engine_key_text, model=settings.model_name)
        if settings.model_name not in (None, server.model, server.client_name):
            raise ServerUnusable(url, f"it serves {server.client_name}, not {settings.model_name}")
        tokenizer = tokenizer_source(server, settings.chosen_model)
        found = {"model": tokenizer, "model_name": settings.model_name or server.client_name}
        settings = settings.model_copy(update=found)
        settings.model_fields_set.update(found)
    return settings
