# Sourced by scripts/demo and scripts/test: finds Python, prepares .venv, enters the checkout.
# shellcheck shell=sh

root=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
cd -- "$root" || exit 1

# Packages of the user or of another environment must not shadow the pinned ones.
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PYTHONNOUSERSITE=1
export SHORTLIST_HOME="${SHORTLIST_HOME:-$root/.shortlist}"

find_python() {
    without_venv=
    for python in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14; do
        # A name on the PATH may be a shim without an interpreter, so each one is asked.
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        "$python" -c 'import ensurepip, venv' 2>/dev/null && return 0
        without_venv=${without_venv:-$python}
    done
    if [ -n "$without_venv" ]; then
        echo "error: $without_venv ($("$without_venv" --version)) lacks the modules venv and ensurepip." >&2
        echo "next:  install them (Debian, Ubuntu: apt-get install python3-venv) and run this again." >&2
    else
        echo "error: no Python 3.11 or newer found (tried \$PYTHON, python3, python3.11 to python3.14)." >&2
        echo "next:  install Python 3.11 or newer, or run: PYTHON=/path/to/python3 $0" >&2
    fi
    return 1
}

# prepare EXTRA...: after it, .venv holds the project and these extras.
prepare() {
    find_python || exit 1
    "$python" "$root/scripts/setup_venv.py" "$@" || exit 1
    PATH="$root/.venv/bin:$PATH"
    export PATH
}
