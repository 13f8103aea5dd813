"""Make ``.venv`` and install the pinned packages into it; a second run returns at once.

    python3 scripts/setup_venv.py train serve

Arguments are extras of pyproject.toml. The extra ``gpu`` is added where ``nvidia-smi`` finds a
GPU, else ``cpu``. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "shortlist-setup.json"
LOG = VENV / "shortlist-setup.log"
INPUTS = ("pyproject.toml", "constraints.txt")
# Off a terminal, pip is heard of this often, in seconds.
QUIET_S = 15.0


def accelerator() -> str:
    """Return ``gpu`` where an NVIDIA GPU answers, else ``cpu``."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "gpu" if listing.returncode == 0 and "GPU" in listing.stdout else "cpu"


def fingerprint(chosen: str) -> dict[str, str]:
    """Return everything that makes an existing ``.venv`` unusable when it changes."""
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return {
        "inputs": digest.hexdigest(),
        "accelerator": chosen,
        "python": ".".join(map(str, sys.version_info[:2])),
        "root": str(ROOT),
    }


def read_stamp() -> dict[str, object]:
    """Return the record of the last complete setup, or nothing."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def make_venv(keep: bool) -> None:
    """Create ``.venv``, from nothing unless `keep` and its own pip answers."""
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--version"]
    if keep and Path(pip[0]).exists():
        works = subprocess.run(pip, capture_output=True, check=False).returncode == 0
        if works:
            return
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        sys.exit(
            f"error: `{sys.executable} -m venv {VENV}` failed:\n{made.stdout}{made.stderr}\n"
            "next:  install the venv and pip parts of Python (Debian, Ubuntu: apt-get install "
            "python3-venv), or free disk space, and run this again."
        )


def follow(process: subprocess.Popen[str], log: IO[str]) -> None:
    """Copy pip's output to `log` and say where it is, on a terminal in one line."""
    assert process.stdout is not None
    tty = sys.stderr.isatty()
    width = shutil.get_terminal_size().columns - 1
    started = spoken = time.monotonic()
    packages = 0
    for line in process.stdout:
        log.write(line)
        log.flush()
        packages += line.startswith("Collecting ")
        seconds = time.monotonic() - started
        if not tty and started + seconds - spoken >= QUIET_S:
            spoken = started + seconds
            sys.stderr.write(f"  {seconds:4.0f} s  {packages:3d} packages\n")
        if tty:
            shown = f"  {seconds:4.0f} s  {packages:3d} packages  {line.strip()}"[:width]
            sys.stderr.write(f"\r\033[K{shown}")
            sys.stderr.flush()
    if tty:
        sys.stderr.write("\r\033[K")


def install(extras: list[str]) -> None:
    """Install the project (editable) and `extras`, or exit with the end of pip's log."""
    command = [
        str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check",
        "--no-input", "--progress-bar", "off", "-c", "constraints.txt",
    ]  # fmt: skip
    if "train" in extras:
        # The exact version by name: an open requirement lets a newer build with gigabytes of
        # CUDA libraries win where an index offers one.
        command.append("torch==" + pinned("torch"))
    command += ["-e", f".[{','.join(extras)}]"]
    with LOG.open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            follow(process, log)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        status = process.wait()
    if status != 0:
        tail = "".join(LOG.read_text().splitlines(keepends=True)[-15:])
        sys.exit(
            f"{tail}error: installing the packages failed (pip exit status {status}, all of it "
            f"in {LOG}).\nnext:  check the network and free disk space and run this again; it "
            "goes on where it stopped."
        )


def pinned(package: str) -> str:
    """Return the version of `package` in constraints.txt."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name == package:
            return version
    sys.exit(
        f"error: constraints.txt does not pin {package}.\nnext:  add a line {package}==VERSION."
    )


def main(wanted: list[str]) -> None:
    """Bring ``.venv`` up to date for the extras `wanted`."""
    VENV.mkdir(exist_ok=True)
    # Two runs at once take turns; the lock lies beside what `venv --clear` empties.
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        chosen = accelerator()
        current = fingerprint(chosen)
        stamp = read_stamp()
        installed = stamp.get("extras")
        have = set(installed) if isinstance(installed, list) else set()
        extras = sorted({chosen, *wanted})
        same = {key: stamp.get(key) for key in current} == current
        if same and have.issuperset(extras) and (VENV / "bin" / "shortlist").exists():
            return
        # cpu and gpu packages share import names: never one on top of the other.
        movable = {"python", "accelerator", "root"}
        keep = not stamp or all(stamp.get(key) == current[key] for key in movable)
        if same:
            extras = sorted(have.union(extras))
        started = time.monotonic()
        print(
            f"setting up .venv ({', '.join(extras)}); the first time takes minutes", file=sys.stderr
        )
        STAMP.unlink(missing_ok=True)
        make_venv(keep)
        install(extras)
        aside = STAMP.with_suffix(".tmp")
        aside.write_text(json.dumps({**current, "extras": extras}))
        aside.replace(STAMP)
        print(f"packages ready after {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; the next run goes on where this one stopped")
