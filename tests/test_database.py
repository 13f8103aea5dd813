"""The embedded server: starts, survives, stops, and leaves nothing."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from features.database import (
    DatabaseConfig,
    connect,
    embedded_url,
    open_pool,
    resolve_url,
    start_embedded,
    stop_embedded,
)
from features.errors import DatabaseUnavailable

START = (
    "import sys; from pathlib import Path; from features.database import start_embedded;"
    " print(start_embedded(Path(sys.argv[1])))"
)
REPOSITORY = Path(__file__).parent.parent


def processes(home):
    """Return every process that works in the cluster of `home`."""
    folder = str(home.resolve() / "postgres")
    found = []
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] == folder and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def postmaster(home):
    return int((home / "postgres" / "postmaster.pid").read_text().split()[0])


def answer(url):
    with connect(url) as connection:
        return connection.execute("select 42").fetchone()[0]


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    if (tmp_path / "home").exists():
        stop_embedded(tmp_path / "home")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster that was made, used and stopped."""
    made = tmp_path_factory.mktemp("made")
    start_embedded(made)
    stop_embedded(made)
    return made / "postgres"


@pytest.fixture
def used_home(home, cluster):
    """A home with a stopped cluster in it."""
    shutil.copytree(cluster, home / "postgres")
    return home


def start_in_process(home, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", START, str(home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment,
    )


def test_start_twice_then_stop(home):
    assert embedded_url(home) is None
    url = start_embedded(home)
    first = postmaster(home)
    assert start_embedded(home) == url == embedded_url(home)
    assert postmaster(home) == first
    assert answer(url) == 42
    assert stop_embedded(home)
    assert processes(home) == []
    assert embedded_url(home) is None
    assert not stop_embedded(home)


def test_only_its_owner_reaches_it(used_home):
    url = start_embedded(used_home)
    folder = Path(url.split("host=")[1])
    assert len(os.fsencode(folder)) < 90
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with connect(url) as connection:
        assert connection.execute("show listen_addresses").fetchone() == ("",)
        assert connection.execute("select usesuper from pg_user").fetchone() == (True,)
        assert connection.execute("show server_encoding").fetchone() == ("UTF8",)
        version = connection.execute("show server_version").fetchone()[0]
    assert version.startswith("18")
    listening = [
        entry for entry in psutil.Process(postmaster(used_home)).net_connections("inet") if entry
    ]
    assert listening == []


def test_two_processes_start_it_at_once_without_a_home_folder(home, tmp_path):
    empty = tmp_path / "nobody_lives_here"
    empty.mkdir()
    starts = [start_in_process(home, PATH=os.environ["PATH"], HOME=str(empty)) for _ in range(3)]
    outputs = [start.communicate(timeout=90) for start in starts]
    assert [start.returncode for start in starts] == [0, 0, 0], outputs
    assert len({output for output, _ in outputs}) == 1
    assert answer(outputs[0][0].strip()) == 42
    assert list(empty.iterdir()) == []


def test_after_a_kill_it_starts_again_with_what_was_committed(used_home):
    with connect(start_embedded(used_home)) as connection:
        connection.execute("create table public.kept (n integer)")
        connection.execute("insert into public.kept values (7)")
    os.kill(postmaster(used_home), signal.SIGKILL)
    with connect(start_embedded(used_home)) as connection:
        assert connection.execute("select n from public.kept").fetchone() == (7,)


def test_a_pid_file_that_names_another_process(used_home):
    url = start_embedded(used_home)
    stop_embedded(used_home)
    stale = used_home / "postgres" / "postmaster.pid"
    stale.write_text(f"{os.getpid()}\n{used_home}/postgres\n1\n5432\n/tmp\n\n0 0\nready\n")
    assert embedded_url(used_home) is None
    assert start_embedded(used_home) == url
    assert answer(url) == 42


def test_an_interrupted_first_start(home):
    half = home / "postgres.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    assert answer(start_embedded(home)) == 42
    assert not half.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become someone else")
def test_as_root_where_no_user_namespace_can_be_made(home, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "env"):
        (programs / name).symlink_to(shutil.which(name))
    start = start_in_process(home, PATH=str(programs))
    output, said = start.communicate(timeout=90)
    assert start.returncode == 0, said
    assert answer(output.strip()) == 42
    assert psutil.Process(postmaster(home)).username() == "nobody"
    assert stop_embedded(home)
    # The other way again, on files that now belong to nobody.
    assert answer(start_embedded(home)) == 42


def test_a_socket_folder_of_someone_else_is_refused(used_home):
    url = start_embedded(used_home)
    stop_embedded(used_home)
    folder = Path(url.split("host=")[1])
    folder.symlink_to(used_home)
    try:
        with pytest.raises(DatabaseUnavailable, match="expected a folder of user"):
            start_embedded(used_home)
    finally:
        folder.unlink()


def test_a_cluster_that_cannot_start_says_why(used_home):
    (used_home / "postgres" / "postgresql.conf").write_text(
        "shared_buffers = 'a lot'\nwork_mem = x\n"
    )
    with pytest.raises(DatabaseUnavailable, match="work_mem"):
        start_embedded(used_home)


def test_a_url_of_ones_own_is_used(database_server, home):
    config = DatabaseConfig(url=database_server.url)
    assert resolve_url(config, home) == database_server.url
    assert not home.exists()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:secret@127.0.0.1:1/nothing",
        "postgresql:///x?host=/nowhere&password=secret",
        "host=/nowhere password=secret",
        "nonsense",
    ],
)
def test_no_server_there(url):
    with pytest.raises(DatabaseUnavailable, match="shortlist db start") as caught:
        connect(url, connect_timeout_s=2)
    assert "secret" not in str(caught.value)


def test_sessions_speak_utc_and_end_slow_statements(database_url):
    async def go():
        config = DatabaseConfig(statement_timeout_ms=50)
        async with open_pool(database_url, config) as pool, pool.connection() as connection:
            zone = await (await connection.execute("show timezone")).fetchone()
            started = time.monotonic()
            with pytest.raises(Exception, match="statement timeout"):
                await connection.execute("select pg_sleep(5)")
            return zone, time.monotonic() - started

    zone, seconds = asyncio.run(go())
    assert zone == ("UTC",)
    assert seconds < 2
