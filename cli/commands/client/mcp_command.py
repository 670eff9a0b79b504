"""`magnus mcp`: the service's requests and batches as tools of the Model Context Protocol."""

import click

from cli.api_client import Client
from cli.hosting.service_access import with_client
from extras import load


@click.command()
@with_client
def mcp(client: Client) -> None:
    """Let an agent use the service.

    Speaks the Model Context Protocol on standard input and output, so the agent's program starts it. Its tools submit
    requests and batches, wait for them, read and cancel them, and show usage, with the rights of the API key. Needs the
    extra `mcp`.
    """
    load("cli.agent_tools", "`magnus mcp`", "mcp").make_server(client).run()
