#!/usr/bin/env bash
# The checks and tests, in what scripts/setup.sh installed; the first that fails ends it.
#
#   scripts/check.sh [--quick] [argument of pytest ...]    as scripts/test.sh --help says
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"

quick=false
if [ "${1:-}" = --quick ]; then
    quick=true
    shift
fi
check() {
    printf '\n== %s\n' "$*"
    "$@"
}
check ruff format --check .
check ruff check .
check mypy
check lint-imports
check python scripts/check_words.py
# Two processes, which take whole files in turn; `-n 0` as an argument has one do all.
if $quick; then
    check python -m pytest -n 2 -m 'not processes' "$@"
    exit
fi
if python -c 'import mkdocs, material, mkdocstrings_handlers.python' 2>/dev/null; then
    check env NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict -f docs/site/mkdocs.yml
else
    printf '\n== the documentation site is not built: install the extra "docs"\n'
fi
check python -m pytest -n 2 "$@"
