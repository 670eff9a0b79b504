"""Connections to webhook endpoints: a name is resolved once, and what is connected to is the address that was checked.

So a name that resolves to a public address when it is looked at and to a private one a moment later wins nothing.
"""

import asyncio
import socket
from collections.abc import Iterable
from concurrent.futures import Executor
from ipaddress import ip_address

import httpcore

from models.webhooks.endpoint_addresses import is_public


class ForbiddenAddress(httpcore.ConnectError):
    """The endpoint's name has no address but private, loopback and link-local ones, to which nothing is sent."""


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """httpcore's connections, to checked addresses alone; TLS still verifies the name."""

    def __init__(self, private: bool, resolving: Executor) -> None:
        """`private`: every address is allowed. `resolving` has the threads that wait for name servers."""
        self._private, self._resolving, self._backend = private, resolving, httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first allowed address that answers; raises ForbiddenAddress, httpcore.ConnectError."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._resolving, socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} has no address") from error
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        allowed = [one for one in addresses if self._private or is_public(ip_address(one.partition("%")[0]))]
        if not allowed:
            raise ForbiddenAddress
        for address in allowed[:-1]:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(allowed[-1], port, timeout, local_address, socket_options)
