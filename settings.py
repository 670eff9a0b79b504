"""Every MAGNUS_* setting, read once at an entry point into one frozen object; inner code gets plain values."""

import difflib
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "MAGNUS_"
BUNDLED_MODEL = Path(__file__).parent / "inference" / "bundled"
FETCHABLE = ("smollm2", "minilm")  # names that `magnus model fetch` knows; see `cli/fetching/known_models.py`
DASHBOARD_USER = "magnus"  # of dashboard and Flower; there is only one, so it is no setting

PolicyName = Literal["vs", "vsq", "ccb", "glp", "abp", "magnus", "sequence", "scls", "baton", "fusion"]


class UnknownSetting(Exception):
    """A MAGNUS_ variable that is no setting; the message has the nearest name that is one."""

    def __init__(self, name: str, nearest: str | None) -> None:
        self.name, self.nearest = name, nearest
        hint = f"; did you mean {nearest}?" if nearest else "; `.env.example` lists every one"
        super().__init__(f"unknown setting {name}{hint}")


class Settings(BaseSettings):
    """The service's settings; durations are seconds, sizes bytes, lengths tokens."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    # where things are
    state_dir: Path = Field(Path(".magnus"), description="Data of the embedded servers, logs, processes.json")
    database_url: str | None = Field(None, description="A Postgres of your own; otherwise `magnus up` starts one")
    redis_url: str | None = Field(None, description="A Redis of your own; otherwise `magnus up` starts one")

    # the outside
    host: str = Field("127.0.0.1", description="Address of the API and the dashboard")
    port: int = Field(8000, ge=0, le=65535, description="Port of the API and the dashboard; 0 picks a free one")
    flower_port: int = Field(5555, ge=0, le=65535, description="Port of Flower on loopback; 0 picks a free one")
    max_body_bytes: int = Field(8 * 2**20, ge=1024, description="Largest request body that the API reads")
    rate_limit: str = Field(
        "60000/minute",
        pattern=r"^\d+/(second|minute|hour)$",
        description="Requests an API key may send, for example 50/second",
    )
    wait_s: float = Field(
        60.0, gt=0, le=600, description="Longest that a call waits for its answer when it is not in the background"
    )
    dashboard_password: SecretStr | None = Field(
        None, description="Basic-auth password of dashboard and Flower; generated if unset"
    )

    # the client commands: submit, status, cancel, demo
    url: str | None = Field(None, description="Address of a running service; otherwise that of the state directory")
    api_key: SecretStr | None = Field(None, description="Key for that address; otherwise the state directory's own key")

    # the model
    model: str = Field(
        str(BUNDLED_MODEL),
        description="Directory or hub id of the served causal LM, or a name that `magnus model fetch` knows",
    )
    model_name: str | None = Field(None, description="The name that clients send; the model's directory name if unset")
    max_prompt_tokens: int = Field(1024, ge=1, description="Longest prompt accepted (Lmax)")
    max_output_tokens: int = Field(
        1024, ge=1, description="Most tokens an answer may have (Gmax); also the default limit"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Weights and KV cache; auto: on CUDA the model's own, on a CPU bfloat16 if native and worth it",
    )
    quantize: Literal["4bit", "8bit"] | None = Field(
        None, description="Load the model quantized (bitsandbytes, CUDA): policy vsq"
    )

    # workers
    workers: int = Field(
        2,
        ge=0,
        description="Workers that `magnus up` starts; if unset, one a GPU; on a CPU 2, or 1 for a large model",
    )
    devices: str = Field(
        "auto",
        description="Comma-separated devices for the workers, for example cuda:0,cuda:1; auto: every GPU, else cpu",
    )
    kv_budget: str = Field(
        "auto",
        description="KV cache budget a worker, for example 20GiB; auto: 70 % of the free GPU memory, 64MiB on CPU",
    )
    torch_threads: int = Field(0, ge=0, description="CPU threads a worker; 0: cores divided by workers")

    # scheduling
    policy: PolicyName = Field("fusion", description="The scheduling policy that a fresh database starts with")
    wma_threshold: int | None = Field(
        None, ge=0, description="Φ of Magnus's Algorithm 1; 50000 as in the paper, 1500 for the bundled model if unset"
    )
    slice_tokens: int | None = Field(
        None, ge=1, description="Slice length S of scls; 128 as in the paper, 32 for the bundled model if unset"
    )
    tick_s: float = Field(0.1, gt=0, description="Beat's tick for predict and plan")
    lease_s: float = Field(
        10.0, gt=0, description="A batch whose worker has not renewed its lease for so long goes back to the queue"
    )
    heartbeat_s: float = Field(
        0.5, gt=0, description="How often a worker renews its leases and reads which requests are cancelled"
    )
    resend_s: float = Field(2.0, gt=0, description="A batch sent and not started for so long is sent again")
    stall_s: float = Field(
        60.0, gt=0, description="An engine that makes no step for so long is abandoned, and its worker process ends"
    )
    max_attempts: int = Field(
        3, ge=1, description="A request fails when its worker was lost so often, the last time with this request alone"
    )
    retention_s: float = Field(2_592_000.0, gt=0, description="Ended requests and batches are deleted after so long")

    # learning
    encoder: str = Field(
        "hashing",
        description="hashing, minilm once fetched, or a sentence-transformers model by name or path",
    )
    predictor: Literal["uilo", "inst", "usin", "forest"] = Field(
        "forest", description="The length predictor that the trainer fits"
    )
    train_length_every_s: float = Field(
        180.0, gt=0, description="Interval of the length predictor's retraining (Magnus III-B)"
    )
    train_serving_every_s: float = Field(
        120.0, gt=0, description="Interval of the serving time estimator's retraining (Magnus III-D)"
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line that is written"
    )

    @field_validator("model", "encoder")
    @classmethod
    def _fetched(cls, value: str, others: ValidationInfo) -> str:
        """The name of a fetched model means its directory, `models/NAME` in the state directory."""
        directory = others.data.get("state_dir", Path()).resolve() / "models" / value
        if Path(value).name == value and directory.is_dir():
            return str(directory)
        if value in FETCHABLE:
            raise ValueError(f"{value} is not in {directory.parent}: run `magnus model fetch {value}` first")
        return value

    @property
    def phi(self) -> int:
        """Φ of Magnus's Algorithm 1: WMA grows with the square of lengths, and the bundled model's are short."""
        return self.wma_threshold if self.wma_threshold is not None else 1_500 if self._is_bundled else 50_000

    @property
    def slice_length(self) -> int:
        """Slice length S of scls: a small part of the longest answer."""
        return self.slice_tokens if self.slice_tokens is not None else 32 if self._is_bundled else 128

    @property
    def _is_bundled(self) -> bool:
        return self.model == str(BUNDLED_MODEL)


def read_settings(**overrides: object) -> Settings:
    """Settings from the environment; raises UnknownSetting for an unknown variable, ValidationError for a bad value."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            nearest = difflib.get_close_matches(name, sorted(known), n=1)
            raise UnknownSetting(name, nearest[0] if nearest else None)
    return Settings(**overrides)  # type: ignore[arg-type]
