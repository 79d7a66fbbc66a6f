# shellcheck shell=bash
# The function find_python, for scripts that try several Pythons: they source this file.

# Prints the path of a Python of a version such as 3.13 that runs and can make virtual environments.
#
# It is looked for on PATH, among pyenv's versions, newest first, and with uv. A shim of pyenv is a file on PATH that
# fails where its version is not chosen, so each candidate is tried. If none is there, a line on stderr says so, and the
# exit code is 1.
find_python() {
    local candidate
    local -a candidates=("python$1")
    mapfile -t -O 1 candidates < <(printf '%s\n' "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/"$1".*/bin/python | sort -rV)
    candidates+=("$(uv python find "$1" 2>/dev/null || true)")
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c "import ensurepip, sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Python $1 is not here: none that runs is on PATH, among pyenv's versions or among uv's. Install it, for example with: pyenv install $1" >&2
    return 1
}
