"""`magnus completion`: the script with which a shell completes commands and options."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

# For each shell the class that makes its script, and the line that says where to put the script.
SHELLS = {
    "bash": (BashComplete, "magnus completion bash >> ~/.bashrc"),
    "zsh": (ZshComplete, "magnus completion zsh >> ~/.zshrc, below its line `compinit`"),
    "fish": (FishComplete, "magnus completion fish > ~/.config/fish/completions/magnus.fish"),
}


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes `magnus` in a shell.

    Its last line says where to put it.
    """
    script, place = SHELLS[shell]
    click.echo(script(context.find_root().command, {}, "magnus", "_MAGNUS_COMPLETE").source().rstrip())
    click.echo(f"# To install: {place}. Then open a new shell.")
