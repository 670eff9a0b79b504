"""`magnus mcp`: the service's requests and batches as tools of the Model Context Protocol."""

import click

from cli.api_client import Client
from cli.output import CommandFailed
from cli.service_access import with_client


@click.command()
@with_client
def mcp(client: Client) -> None:
    """Let an agent use the service.

    Speaks the Model Context Protocol on standard input and output, so the agent's program starts it. Its tools submit
    requests and batches, wait for them, read and cancel them, and show usage, with the rights of the API key. Needs the
    extra `mcp`.
    """
    try:
        # imported here because the package of the extra may be missing
        from cli.agent_tools import make_server
    except ModuleNotFoundError as error:
        raise CommandFailed("the package mcp is not installed: pip install 'magnus-llm[mcp]'") from error
    make_server(client).run()
