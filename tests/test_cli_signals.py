"""A command that is told to end, once or twice, takes what it started along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from features.database import embedded_url


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_database_that_the_command_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    # Reading a pipe that nobody writes, the command waits with its database running.
    source = tmp_path / "interactions.csv"
    os.mkfifo(source)
    home = tmp_path / "home"
    environment = {**os.environ, "SHORTLIST_HOME": str(home)}
    environment.pop("SHORTLIST_DATABASE_URL", None)
    with subprocess.Popen(
        [sys.executable, "-m", "serve.cli", "load", source, "--preset", "csv"],
        env=environment,
        start_new_session=True,
    ) as process:
        end = time.monotonic() + 60
        while embedded_url(home) is None and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        # As timeout(1) does: the process, then its group.
        process.send_signal(number)
        os.killpg(process.pid, number)
        process.wait(60)
    assert process.returncode != 0
    assert embedded_url(home) is None
