#!/usr/bin/env bash
# Every check and test, in what scripts/setup.sh installed; the first that fails ends it. Arguments go to pytest.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"

check() {
    printf '\n== %s\n' "$*"
    "$@"
}
check ruff format --check .
check ruff check .
check mypy
check lint-imports
check python -m pytest "$@"
