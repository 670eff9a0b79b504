"""What `magnus up` finds out about servers of others before it starts anything: their model, and its tokenizer."""

from inference.remote.server_capabilities import tokenizer_source
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_probe import connect
from settings import Settings


def with_engines(settings: Settings) -> Settings:
    """The settings with the servers' model and tokenizer, where the operator has set none.

    Raises ServerUnusable for a server that does not answer, or that serves another model than the first one.
    """
    key = settings.engine_key.get_secret_value() if settings.engine_key else None
    for url in settings.engines:
        server = connect(url, key=key, model=settings.model_name)
        if settings.model_name not in (None, server.model, server.client_name):
            raise ServerUnusable(url, f"it serves {server.client_name}, not {settings.model_name}")
        configured = settings.model if "model" in settings.model_fields_set else None
        found = {"model": tokenizer_source(server, configured), "model_name": settings.model_name or server.client_name}
        settings = settings.model_copy(update=found)
        settings.model_fields_set.update(found)
    return settings
