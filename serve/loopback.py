"""Keeps a replica's internal gRPC port off the network.

Ray Serve binds the port over which deployments call each other to all interfaces, and what
arrives there is unpickled: whoever reaches it runs code. It has no setting for the address.
"""

from __future__ import annotations

from ray.serve._private import replica

from features.errors import ConfigError

_ALL = "[::]:"
_LOOPBACK = "127.0.0.1:"


def bind_to_loopback() -> None:
    """Make the replica of this process listen on loopback; call it before it is initialized.

    Raises
    ------
    ConfigError
        This version of Ray starts the port in another way.
    """
    bind = getattr(replica, "add_port_to_grpc_server", None)
    if bind is None:
        raise ConfigError(
            "this Ray version starts a replica's gRPC port in an unknown way, and it would be "
            "open to the network; install the pinned Ray (constraints.txt)"
        )
    replica.add_port_to_grpc_server = lambda server, address: bind(
        server, address.replace(_ALL, _LOOPBACK)
    )
