"""The checks of `magnus doctor`: what this machine lacks to run Magnus, with remedies."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import redis
from jinja2 import TemplateError
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from cli.checks import startup_checks
from cli.hosting.embedded_servers import postgres_binaries, valkey_binary
from cli.hosting.service_files import running_service
from extras import missing
from inference.engine_errors import UnreadableModel
from inference.model_directory.chat_template import read_chat_templates
from inference.model_directory.model_files import UnreadableWeights
from inference.model_directory.model_weights import count_parameters, cpu_dtype
from inference.prompts.prompt_format import load_prompt_format
from inference.remote.server_tokens import is_server, load_request_tokens
from models.connections.connection_slots import MOST_OF, connection_shortage
from models.connections.database_errors import GRANT, explain
from models.connections.schema_state import schema_state
from models.connections.session import brief_engine, is_pooled
from models.schema_upgrade import hazards, server_version, unreadable_tables
from models.upkeep.invariants import INVARIANTS, OF_PROCESSES, SHOWN, violations
from settings import Settings

MIN_FREE_BYTES = 2 * 2**30  # the log files alone may take 320 MiB; the database grows with its requests. Not tuned
HEALTHY = ('{"status":"ok"}', "OK")  # the bodies of the health pages of our web process and of Flower
TEMPLATE_REMEDY = "take the template of the model's authors; without it clients may send /v1/completions alone"
MIN_POSTGRES_VERSION = 14  # older releases are no longer maintained


@dataclass(frozen=True)
class Finding:
    """A check's result; `remedy` says what to do, None if nothing has to be done."""

    check: str
    found: str
    remedy: str | None = None


def findings(settings: Settings) -> Iterator[Finding]:
    """Yields the result of each check, in the order in which `magnus up` depends on them."""
    yield Finding("Python", ".".join(map(str, sys.version_info[:3])))
    yield from (_binary("Postgres wheel", lambda: postgres_binaries() / "postgres"), _binary("broker", valkey_binary))
    yield _state_dir(settings.state_dir)
    running = running_service(settings.state_dir)
    if running is None:
        yield _port("port of the API", settings.host, settings.port, "MAGNUS_PORT", "/healthz")
        yield _port("port of Flower", "127.0.0.1", settings.flower_port, "MAGNUS_FLOWER_PORT", "/healthcheck")
    url = running.url if running else settings.url
    if url is not None:
        yield _service(url.rstrip("/").removesuffix("/v1"))
    yield from _database(settings.database_url or (running.database_url if running else None), settings.lease_s)
    yield _redis(settings.redis_url or (running.redis_url if running else None))
    yield from _model(settings)
    yield _dtype(settings)
    yield from _torch([] if running else list(startup_checks.missing_extras(settings)))


def _binary(check: str, find: Callable[[], Path]) -> Finding:
    remedy = "install the project again: make clean install; or set MAGNUS_DATABASE_URL and MAGNUS_REDIS_URL"
    try:
        path = find()
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)  # noqa: S603
    except (OSError, ModuleNotFoundError, subprocess.TimeoutExpired) as error:
        return Finding(check, f"does not run: {error}", remedy)
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    return Finding(
        check, lines[0] if lines else f"says nothing, exit status {answer.returncode}", None if lines else remedy
    )


def _state_dir(state_dir: Path) -> Finding:
    parent = next(path for path in (state_dir.resolve(), *state_dir.resolve().parents) if path.exists())
    if not parent.is_dir():
        return Finding("state directory", f"{parent} is a file", "choose another with MAGNUS_STATE_DIR")
    if not os.access(parent, os.W_OK | os.X_OK):
        return Finding("state directory", f"{parent} is not writable", "choose another with MAGNUS_STATE_DIR")
    free = shutil.disk_usage(parent).free
    found = f"{state_dir.resolve()}, {free / 2**30:.1f} GiB free"
    return Finding("state directory", found, None if free > MIN_FREE_BYTES else "free some disk space, 2 GiB or more")


def _port(check: str, host: str, port: int, setting: str, health: str) -> Finding:
    """Returns whether the port is free, or taken by a process of Magnus, which answers at its page `health`."""
    problem = startup_checks.port_problem(host, port, setting)
    if problem is None:
        return Finding(check, f"{host}:{port} is free")
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # a wildcard is no address to call
    with suppress(httpx.HTTPError, httpx.InvalidURL):
        page = httpx.get(httpx.URL(scheme="http", host=address, port=port, path=health), timeout=2, trust_env=False)
        if page.text.replace(" ", "").strip() in HEALTHY:
            return Finding(check, f"Magnus listens at {host}:{port}")
    return split_finding(check, problem)


def _service(url: str) -> Finding:
    """Returns whether a web process answers at the address that clients have."""
    with suppress(httpx.HTTPError, httpx.InvalidURL):
        if httpx.get(f"{url}/healthz", timeout=5).is_success:
            return Finding("service", f"answers at {url}")
    remedy = "start it again with `magnus run web`, unless `magnus up` does, and read its log; clients get no answer"
    return Finding("service", f"does not answer at {url}", remedy)


def split_finding(check: str, problem: str | None, without: str = "") -> Finding:
    """Splits a problem at its last semicolon into fault and remedy; the finding says `without` if there is none."""
    if problem is None:
        return Finding(check, without)
    found, _, remedy = problem.rpartition("; ")
    return Finding(check, found or problem, remedy)


def _database(url: str | None, lease_s: float) -> Iterator[Finding]:
    if url is None:
        yield Finding("Postgres", "an embedded one, started by `magnus up`")
        return
    try:
        with brief_engine(url, "magnus doctor") as engine, engine.connect() as connection:
            yield from _server(connection)
            schema = schema_state(connection)
            yield Finding("schema", schema.described, schema.problem)
            if schema.problem is None:
                if lacking := unreadable_tables(connection):
                    yield Finding("rights", f"none on {', '.join(lacking)}", GRANT)
                yield from _invariants(connection, lease_s)
    except SQLAlchemyError as error:
        yield split_finding("Postgres", explain(error))


def _server(connection: Connection) -> Iterator[Finding]:
    version = server_version(connection)
    remedy = None if version >= MIN_POSTGRES_VERSION else f"Magnus needs Postgres {MIN_POSTGRES_VERSION} or newer"
    yield Finding("Postgres", f"version {version}", remedy)
    yield from (split_finding("Postgres", each) for each in hazards(connection))
    shortage = connection_shortage(connection, dict.fromkeys(MOST_OF, 1))
    yield split_finding("connections", shortage, "enough for a process of each kind")
    if is_pooled(connection):
        yield Finding("pooler", "one is in between: no prepared statements, and each transaction brings its settings")


def _invariants(connection: Connection, lease_s: float) -> Iterator[Finding]:
    found = list(violations(connection, grace_s=2 * lease_s))
    for violation in found:
        more = f" and {violation.count - len(violation.examples)} more" if violation.count > SHOWN else ""
        yield Finding(violation.invariant, f"broken by {'; '.join(violation.examples)}{more}", violation.remedy)
    if not found:
        yield Finding("invariants", f"{len(INVARIANTS) + len(OF_PROCESSES)} hold")


def _redis(url: str | None) -> Finding:
    if url is None:
        return Finding("Redis", "an embedded one, started by `magnus up`")
    problem = startup_checks.broker_problem(url)
    if problem is not None:
        return split_finding("Redis", problem)
    with redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5) as client:
        facts = client.info()
    policy = facts.get("maxmemory_policy")
    found = f"version {facts.get('redis_version')}, {policy}"
    return Finding("Redis", found, None if policy == "noeviction" else "set maxmemory-policy noeviction")


def _model(settings: Settings) -> Iterator[Finding]:
    name, *others = settings.lms
    found = f"{name} from {settings.model}" + "".join(f"; {other} is loaded in its place" for other in others)
    yield split_finding("model", startup_checks.model_problem(settings.model), found)
    yield from (split_finding("models", problem) for problem in startup_checks.further_model_problems(settings))
    yield _longest_prompt(settings)
    yield from answer_findings(settings)
    yield split_finding("encoder", startup_checks.encoder_problem(settings.encoder), settings.encoder)
    yield split_finding("length predictor", startup_checks.predictor_problem(settings), settings.predictor)
    yield from (split_finding("adapters", each) for each in startup_checks.adapter_problems(settings))
    unserved = startup_checks.embedding_problems(settings.text_models, settings.lms)
    yield from (split_finding("embeddings", each) for each in unserved)
    yield from (split_finding("devices", each) for each in startup_checks.device_problems(settings.devices))


def _longest_prompt(settings: Settings) -> Finding:
    try:
        context = load_request_tokens(settings.model, None).context_tokens
    except UnreadableModel:
        context = None
    known = "the model's context is not known" if context is None else f"the model's context is {context:,}"
    if settings.max_prompt_tokens is None:
        return Finding("longest prompt", f"{known} tokens; /v1/models says what the workers' memory allows of it")
    too_long = context is not None and settings.max_prompt_tokens >= context
    remedy = "unset MAGNUS_MAX_PROMPT_TOKENS, or set it below the context" if too_long else None
    return Finding("longest prompt", f"{settings.max_prompt_tokens:,} tokens by setting; {known}", remedy)


def answer_findings(settings: Settings) -> Iterator[Finding]:
    """Yields the model's defaults from its own files: how answers are sampled, and what the chat template supports."""
    try:
        tokens = load_request_tokens(settings.model, None)
    except UnreadableModel:
        return
    asked = ", ".join(f"{name} {value:g}" for name, value in tokens.generation.sampling.items())
    sampling = asked if asked and settings.generation_config == "auto" else "greedy"
    found = f"{sampling} where a client sends nothing else, by MAGNUS_GENERATION_CONFIG={settings.generation_config}"
    if tokens.generation.not_honoured:
        found += f"; generation_config.json also has {', '.join(tokens.generation.not_honoured)}, which is not honoured"
    yield Finding("sampling", found)
    if is_server(settings.model):
        return
    templates = read_chat_templates(settings.model)
    if templates.chats is None:
        yield Finding("chat template", "none: prompts are the plain texts, with a blank line between them")
        return
    try:
        load_prompt_format(settings.model).encode("", "a message")
    except TemplateError as error:
        yield Finding("chat template", f"from {templates.file}: it refuses a user's message: {error}", TEMPLATE_REMEDY)
        return
    variables = ", ".join(sorted(tokens.template_variables or ())) or "none"
    abilities = f"{'thinking' if tokens.thinks else 'no thinking'}, {'tools' if tokens.takes_tools else 'no tools'}"
    found = f"from {templates.file}: {abilities}; variables for chat_template_kwargs: {variables}"
    yield Finding("chat template", found)


def _dtype(settings: Settings) -> Finding:
    if settings.dtype != "auto":
        return Finding("number format", f"{settings.dtype}, as MAGNUS_DTYPE says")
    try:
        parameters = count_parameters(Path(settings.model))
    except (UnreadableWeights, UnreadableModel):  # the check of the model reports the reason
        parameters = None
    if parameters is None:
        return Finding("number format", "of a CPU worker: known once the model is loaded; on CUDA: the model's own")
    dtype, why = cpu_dtype(parameters)
    return Finding("number format", f"of a CPU worker: {dtype}, because {why}; on CUDA: the model's own")


def _torch(lacking: list[str]) -> Iterator[Finding]:
    if missing("torch"):
        yield from (Finding("torch", "not installed", why) for why in lacking)
        if not lacking:
            yield Finding("torch", "not installed, which workers of Magnus's own engine alone need")
        return
    # in a process of its own, because loading torch takes seconds and hundreds of megabytes
    script = "import torch; print(torch.__version__, torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)  # noqa: S603
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("torch", f"does not load: {last}", "install the project again: make clean install")
        return
    version, gpus = answer.stdout.split()
    if int(gpus) == 0 and shutil.which("nvidia-smi"):
        yield Finding("torch", f"{version}, sees no GPU", "install a CUDA build of torch and look at nvidia-smi")
    else:
        yield Finding("torch", f"{version}, {gpus} GPUs" if int(gpus) else f"{version}, on the CPU")
