"""Every MAGNUS_* setting, read once at an entry point into one frozen object; inner code gets plain values.

More than 300 lines, because each setting has its bounds and its description here and nowhere else.
"""

import difflib
import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

import setting_formats as formats
from setting_parameters import GivenParameters, Parameters

VERSION = "1.0.0"
PREFIX = "MAGNUS_"
BUNDLED_MODEL = Path(__file__).parent / "inference" / "bundled"
FETCHABLE = ("smollm2", "minilm")  # names that `magnus model fetch` knows; see `cli/fetching/known_models.py`
GGUF, CONVERTED = ".gguf", "magnus-converted"  # a served GGUF file is converted into CONVERTED/NAME beside it, once
EMBEDDERS = {"all-MiniLM-L6-v2": "minilm"}  # fetched names by the names that clients send
LABSE = "sentence-transformers/LaBSE"  # Magnus's encoder (III-B), by the name `labse`
DASHBOARD_USER = "magnus"  # the only user of dashboard and Flower

PolicyName = Literal["vs", "vsq", "ccb", "glp", "abp", "magnus", "sequence", "scls", "baton", "fusion"]

AskingTheModel = Literal["pooled", "perception", "pia"]  # length predictors that load MAGNUS_MODEL themselves
PredictorName = Literal["uilo", "raft", "inst", "usin", "forest", AskingTheModel]


# What replaces the settings of earlier releases, which operators may still have in their `.env`.
GONE = {
    "MAGNUS_TRAIN_LENGTH_EVERY_S": "write MAGNUS_PARAMETERS=refit_length_s=SECONDS",
    "MAGNUS_TRAIN_SERVING_EVERY_S": "write MAGNUS_PARAMETERS=refit_serving_s=SECONDS",
    "MAGNUS_TENANT_WAITING_CALLS": "it is three quarters of MAGNUS_WAITING_CALLS",
    "MAGNUS_TENANT_QUEUED_BYTES": "it follows MAGNUS_TENANT_QUEUED_TOKENS",
    "MAGNUS_TENANT_PRIORITY_REQUESTS": "it is 10 unless `magnus tenant set` says otherwise",
    "MAGNUS_RESEND_S": "it is 2 s",
    "MAGNUS_MAX_ATTEMPTS": "it is 3",
    "MAGNUS_TICK_S": "it is 2.5 s",
} | {
    PREFIX + name.upper(): f"write MAGNUS_PARAMETERS={name}=VALUE"
    for name in Parameters.model_fields
    if not name.startswith("refit_")
}


class UnknownSetting(Exception):
    """A MAGNUS_ variable is not a setting; the message has what replaces it, or the nearest setting's name."""

    def __init__(self, name: str, nearest: str | None) -> None:
        self.name, self.nearest = name, nearest
        if name in GONE:
            super().__init__(f"{name} is no setting any more: {GONE[name]}")
            return
        hint = f"; did you mean {nearest}?" if nearest else "; `magnus settings` lists every one"
        super().__init__(f"unknown setting {name}{hint}")


class Settings(BaseSettings):
    """The service's settings; durations are seconds, sizes bytes, lengths tokens."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    # where things are
    state_dir: Path = Field(Path(".magnus"), description="Data of the embedded servers, logs, processes.json")
    database_url: formats.PostgresUrl | None = Field(
        None, description="A Postgres of your own; otherwise `magnus up` starts one"
    )
    redis_url: formats.RedisUrl | None = Field(
        None, description="A Redis of your own; otherwise `magnus up` starts one"
    )

    # the outside
    host: str = Field("127.0.0.1", description="Address of the API and the dashboard")
    port: int = Field(8000, ge=0, le=65535, description="Port of the API and the dashboard; 0 picks a free one")
    flower_port: int = Field(5555, ge=0, le=65535, description="Port of Flower on loopback; 0 picks a free one")
    max_body_bytes: int = Field(8 * 2**20, ge=1024, description="Largest request body that the API reads")
    max_file_bytes: int = Field(200 * 2**20, ge=1024, description="Largest file that can be uploaded for a batch")
    tenant_file_bytes: int = Field(
        10 * 2**30, ge=1024, description="Most bytes that the uploaded files of a tenant may have together"
    )
    cors_origins: str | None = Field(
        None, description="Comma-separated origins whose pages may use the API from a browser, * for all"
    )
    rate_limit: str = Field(
        "60000/minute",
        pattern=r"^\d+/(second|minute|hour)$",
        description="Requests a tenant may send, for example 50/second",
    )
    tenant_queued_requests: int = Field(200_000, ge=1, description="Most requests that a tenant may have in the queue")
    tenant_queued_tokens: int = Field(
        100_000_000, ge=1, description="Most tokens that the prompts of a tenant's queued requests may have together"
    )
    waiting_calls: int = Field(
        2000, ge=1, description="Most calls that may wait for their answers or stream them, in each web process"
    )
    wait_s: float = Field(
        60.0, gt=0, le=600, description="Longest that a call waits for its answer when it is not in the background"
    )
    prices: formats.PriceList | None = Field(
        None,
        description="GPU-hour's price and tiers' factors, for planner and web alike: gpu_hour=2.50,priority=2,flex=0.4",
    )
    quote_s: float = Field(30.0, ge=1, le=3600, description="Seconds within which a quote can be accepted")
    min_deadline_chance: float = Field(
        0.5, ge=0, le=0.95, description="A magnus.deadline_s with a smaller chance is refused; 0: none is"
    )
    public_promises: bool = Field(False, description="The promise book can be read without a key, without tenants")
    private_webhooks: bool = Field(
        False, description="Webhooks may go to private, loopback and link-local addresses too, and by http://"
    )

    # signing in to the dashboard
    # At least 12 characters, because the number of sign-in attempts is not limited: a limit would let anybody lock the
    # operators out.
    dashboard_password: SecretStr | None = Field(
        None, min_length=12, description="Password of dashboard and Flower, 12 characters at least; generated if unset"
    )
    operator_roles: formats.RoleList | None = Field(
        None, description="Scopes by group of those who sign in elsewhere: ops=operate,submit,read; staff=operate"
    )
    public_url: formats.SecureOrigin | None = Field(
        None, description="Address at which browsers reach the dashboard; the OpenID provider sends them back there"
    )
    oidc_issuer: formats.SecureUrl | None = Field(
        None, description="OpenID provider whose people may sign in, as https://sso.example.com/realms/company"
    )
    oidc_client_id: str | None = Field(None, description="The client id that this provider gave Magnus")
    oidc_client_secret: SecretStr | None = Field(None, description="The client's secret; unset for a public client")
    oidc_scope: str = Field(
        "openid email profile", pattern=r"\bopenid\b", description="The scopes that the provider is asked for"
    )
    oidc_claim: str = Field("groups", description="Claim of the ID token with the groups of MAGNUS_OPERATOR_ROLES")
    proxy_user_header: formats.HeaderName | None = Field(
        None, description="Header in which a trusted proxy names the person who signed in there"
    )
    proxy_groups_header: formats.HeaderName | None = Field(
        None, description="Header with this person's groups; if unset, the name is the only group"
    )
    trusted_proxies: formats.NetworkList | None = Field(
        None, description="Comma-separated addresses and networks from which these headers are believed"
    )

    # the client commands: submit, status, cancel, demo
    url: str | None = Field(None, description="Address of a running service; otherwise that of the state directory")
    api_key: SecretStr | None = Field(None, description="Key for that address; otherwise the state directory's own key")

    # the model
    model: str = Field(
        str(BUNDLED_MODEL),
        description="Directory, hub id or GGUF file of the served LM, or a name that `magnus model fetch` knows",
    )
    model_name: str | None = Field(None, description="The name that clients send; the model's directory name if unset")
    model_names: str | None = Field(None, description="Comma-separated further names that clients may send for it")
    models: str | None = Field(
        None,
        description="Comma-separated further LMs, directories or hub ids, which workers load in its place as requests "
        "call for them",
    )
    hosted_tools: Literal["drop", "refuse"] = Field(
        "drop",
        description="Tools that only OpenAI or Anthropic runs, such as web_search: left out with a note, or refused",
    )
    generation_config: Literal["auto", "none"] = Field(
        "auto",
        description="Sampling where clients leave it out; auto: as the model's generation_config.json, none: greedy",
    )
    max_prompt_tokens: int | None = Field(
        None, ge=1, description="Longest prompt accepted (Lmax); if unset, what the model's context and a worker hold"
    )
    max_output_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens an answer may have (Gmax), also without a limit of the client's; if unset, what the "
        "model's context leaves, and 1024 without a limit",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Data type of weights and KV cache; auto: on CUDA the model's, on a CPU bfloat16 if it is faster",
    )
    quantize: Literal["4bit", "8bit"] | None = Field(
        None, description="Load the model quantized (bitsandbytes, CUDA): policy vsq"
    )

    adapters: Path | None = Field(
        None, description="Directory of LoRA adapters beside the LM: each subdirectory's name is a model for clients"
    )
    embed: str | None = Field(
        None,
        description="Comma-separated sentence-transformers models for /v1/embeddings, /v1/rerank and /v1/score: "
        "directories, hub ids, or all-MiniLM-L6-v2 once fetched",
    )

    # workers
    workers: int = Field(
        2,
        ge=0,
        description="Workers that `magnus up` starts; if unset, one a GPU; on a CPU 2, or 1 from 500 M parameters on",
    )
    devices: formats.DeviceList = Field(
        "auto",
        description="Comma-separated devices for the workers, for example cuda:0,cuda:1; auto: every GPU, else cpu",
    )
    kv_budget: formats.ByteSize = Field(
        "auto",
        description="KV cache budget a worker, as 20GiB; auto: 70 % of free GPU memory; on CPU 64MiB or a full context",
    )
    torch_threads: int = Field(0, ge=0, description="Most CPU threads a worker; 0: cores divided by workers")

    # engines that are servers of other projects
    engine_urls: formats.HttpUrls | None = Field(
        None, description="Comma-separated addresses of engine servers, such as vLLM's, that `magnus up` uses"
    )
    engine_key: SecretStr | None = Field(None, description="API key of those servers")

    # scheduling
    policy: PolicyName = Field("fusion", description="The scheduling policy that a fresh database starts with")
    parameters: GivenParameters = Field(
        Parameters(), description="Comma-separated parameters of policies, predictors and engine, as slice_tokens=64"
    )
    off_peak: formats.OffPeak | None = Field(
        None,
        description="Hours and time zone in which the tier off_peak is served, as 22:00-06:00 Europe/Berlin",
    )
    lease_s: float = Field(
        10.0, gt=0, description="A batch whose worker has not renewed its lease for this long goes back to the queue"
    )
    heartbeat_s: float = Field(
        0.5, gt=0, description="How often a worker renews its leases and reads which requests are cancelled"
    )
    stall_s: float = Field(
        60.0, gt=0, description="An engine that makes no step for this long is abandoned, and its worker process ends"
    )
    stop_s: float = Field(
        5.0,
        ge=1,
        le=600,
        description="A worker ends this long after SIGTERM; what it cannot finish goes on elsewhere with its tokens",
    )
    unserved_s: float = Field(
        3600.0, gt=0, description="Requests for a model are refused once others have waited this long without a worker"
    )
    target_response_s: float = Field(
        30.0,
        gt=0,
        description="Mean response time for which the metric magnus_workers_wanted counts the workers needed",
    )
    retention_s: float = Field(2_592_000.0, gt=0, description="Ended requests and batches are deleted after this long")

    # learning
    encoder: str = Field(
        "hashing", description="hashing, minilm once fetched, labse, or a sentence-transformers model by name or path"
    )
    predictor: PredictorName = Field(
        "forest",
        description="The length predictor that the trainer fits; pooled, perception and pia ask MAGNUS_MODEL on a CPU",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line that is written"
    )
    traces_url: formats.HttpUrls | None = Field(
        None, description="An OpenTelemetry collector for a trace of each request, as http://HOST:4318/v1/traces"
    )

    @field_validator("model", "encoder")
    @classmethod
    def _fetched(cls, value: str, others: ValidationInfo) -> str:
        """Replaces names of fetched models and GGUF files by their directories in the state directory."""
        if others.field_name == "model" and value.endswith(GGUF) and not Path(value).is_dir():
            converted = Path(value).parent / CONVERTED / Path(value).stem
            if not Path(value).is_file() and not converted.is_dir():
                raise ValueError(f"there is no file {value}")
            return str(converted)
        directory = others.data.get("state_dir", Path()).resolve() / "models" / value
        if Path(value).name == value and directory.is_dir():
            return str(directory)
        if others.field_name == "encoder" and value == "labse":
            return LABSE
        if value in FETCHABLE:
            raise ValueError(f"{value} is not in {directory.parent}: run `magnus model fetch {value}` first")
        return value

    @model_validator(mode="after")
    def _leases_outlive_heartbeats(self) -> Self:
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"MAGNUS_LEASE_S ({self.lease_s:g}) must be at least twice MAGNUS_HEARTBEAT_S ({self.heartbeat_s:g}), "
                "or every batch is lost while it runs"
            )
        return self

    @model_validator(mode="after")
    def _nothing_is_useless(self) -> Self:
        for name, others in formats.NEEDS.items():
            missing = [PREFIX + other.upper() for other in others if getattr(self, other) is None]
            if getattr(self, name) is not None and missing:
                raise ValueError(f"{PREFIX}{name.upper()} needs {' and '.join(missing)} as well")
        return self

    @property
    def cors_origin_list(self) -> list[str]:
        """The origins whose pages may use the API."""
        return [one.rstrip("/") for one in formats.listed(self.cors_origins)]

    @property
    def further_model_names(self) -> tuple[str, ...]:
        """The model's further names, from MAGNUS_MODEL_NAMES."""
        return tuple(formats.listed(self.model_names))

    @property
    def lms(self) -> dict[str, str]:
        """The directory or hub id of each LM by the name that clients send: MAGNUS_MODEL, then MAGNUS_MODELS."""
        first = {self.model_name or Path(self.model).name: self.model}
        return first | {Path(one).name: self._fetched_or(one) for one in formats.listed(self.models)}

    @property
    def text_models(self) -> dict[str, str]:
        """The directory or hub id of each model of MAGNUS_EMBED, by the name that clients send: its last part."""
        return {Path(one).name: self._fetched_or(one, EMBEDDERS.get(one, one)) for one in formats.listed(self.embed)}

    def _fetched_or(self, model: str, fetched_as: str = "") -> str:
        """Returns the directory of a model if it was fetched, and the model itself otherwise."""
        fetched = self.state_dir.resolve() / "models" / (fetched_as or model)
        return str(fetched) if "/" not in model and fetched.is_dir() else model

    @property
    def tenant_waiting_calls(self) -> int:
        """Most calls of one tenant that may wait in a web process, so that others can wait, too."""
        return max(1, 3 * self.waiting_calls // 4)

    @property
    def tenant_queued_bytes(self) -> int:
        """Most bytes that a tenant's queued requests may have in the database: 4 GiB, or 42 for each queued token.

        A token of a prompt is about 4 bytes long, and stored with its request in several forms.
        """
        return max(4 * 2**30, 42 * self.tenant_queued_tokens)

    @property
    def assumed_prompt_tokens(self) -> int:
        """Lmax for the batch sizes of Magnus Eq. (1), by default below the model's context, which few prompts fill."""
        return self.max_prompt_tokens or 1024

    @property
    def assumed_output_tokens(self) -> int:
        """Gmax for the batch sizes of Magnus Eq. (1), and the limit of answers to calls without one."""
        return self.max_output_tokens or 1024

    @property
    def chosen_model(self) -> str | None:
        """The operator's own MAGNUS_MODEL; None if the default is in force."""
        return self.model if "model" in self.model_fields_set else None

    @property
    def engine_key_text(self) -> str | None:
        """MAGNUS_ENGINE_KEY as plain text; None if unset."""
        return self.engine_key.get_secret_value() if self.engine_key else None

    @property
    def engines(self) -> list[str]:
        """The addresses of the engine servers."""
        return formats.listed(self.engine_urls)


def read_settings(**overrides: object) -> Settings:
    """Returns the environment's settings; raises UnknownSetting for an unknown name, ValidationError for a value."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            nearest = difflib.get_close_matches(name, sorted(known), n=1)
            raise UnknownSetting(name, nearest[0] if nearest else None)
    return Settings(**overrides)  # type: ignore[arg-type]
