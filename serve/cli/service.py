"""Commands that serve, and that ask a service."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Annotated, Any, Literal

import typer

from serve.cli import context
from serve.cli.console import ERR, OUT, emit
from serve.cli.data import Json

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM came: unwind, and stop what was started."""


class Stoppable:
    """Turns the first SIGINT or SIGTERM into :class:`Stopped`, as long as the block lasts.

    Later ones do nothing: a second Ctrl-C must not interrupt the very code that leaves no
    process behind.
    """

    def __enter__(self) -> Stoppable:
        self._stopped = False
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.arm()
        return self

    def arm(self) -> None:
        """Install the handlers, again where a library put its own in their place."""
        for number in SIGNALS:
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self._stopped:
            self._stopped = True
            raise Stopped

    def disarm(self) -> None:
        """From here on signals do nothing."""
        self._stopped = True
        self.arm()

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="TCP port.")] = None,
    topology: Annotated[
        Literal["colocated", "split"] | None,
        typer.Option(help="All stages in each replica, or rankers of their own."),
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="API replicas.")] = None,
) -> None:
    """Serve the current release until Ctrl-C, which stops everything that was started.

    Options win over the settings file and the environment.

    Example: shortlist serve --port 8000 --replicas 2
    """
    from serve.deployment import start

    settings = context.settings()
    given = {"host": host, "port": port, "topology": topology, "replicas": replicas}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = settings.model_copy(update={"serve": settings.serve.model_copy(update=chosen)})
    service = None
    with Stoppable() as stoppable, context.database(settings):
        try:
            service = start(settings)
            # Ray installs handlers of its own while it starts.
            stoppable.arm()
            ERR.print(f"serving on {service.url}, docs on {service.url}/docs; Ctrl-C stops it")
            service.wait()
        except Stopped:
            ERR.print("stopping")
        finally:
            stoppable.disarm()
            if service is not None:
                service.stop()


def recommend(
    user: Annotated[str, typer.Argument(help="External id of the user.")],
    count: Annotated[int, typer.Option(min=1, max=500, help="Items wanted.")] = 10,
    url: Annotated[
        str | None, typer.Option(help="Service to ask; none takes the one of the settings.")
    ] = None,
    diversity: Annotated[
        float, typer.Option(min=0, max=1, help="0 ranks by score, 1 by dissimilarity.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Ask the running service for one user's list; show it with the stage timings.

    Example: shortlist recommend 414 --count 5
    """
    from serve.cli.client import call
    from serve.cli.people import liked
    from serve.cli.tables import liked_table

    settings = context.settings()
    where = url or f"http://{settings.serve.host}:{settings.serve.port}"
    body = {"user_id": user, "count": count, "diversity": diversity}
    answer = call(where, "/v1/recommendations", body)
    if as_json:
        emit(answer)
        return
    with context.connected(settings) as connection:
        titles = liked(connection, user, 5)
    if titles:
        OUT.print(liked_table(user, titles))
    show(answer, user)


def show(answer: dict[str, Any], user: str) -> None:
    """Print the list of an answer and the waterfall of its stages."""
    from serve.cli.tables import recommended_table, waterfall

    OUT.print(recommended_table(answer, user))
    stages = dict(answer["timing_ms"])
    total = stages.pop("total")
    OUT.print(waterfall(stages, total, "Where the time went, in the service"))
