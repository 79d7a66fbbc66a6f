#!/usr/bin/env bash
# Sets up what is missing, then runs the checks and tests; the first that fails ends it.
#
#   scripts/test.sh [argument of pytest ...]            every check and test
#   scripts/test.sh --quick [argument of pytest ...]    format, lint, types, import contracts, words,
#                                                       and the tests that start no process
set -euo pipefail
root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
    sed -n 's/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | tail -n +2
    exit
fi
"$root/scripts/setup.sh" test >&2
cd -- "$root"
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
if $quick; then
    # The processes take whole files in turn; `-n 0` as an argument has one do all.
    check python -m pytest -n 2 -m 'not processes' "$@"
    exit
fi
if python -c 'import mkdocs, material, mkdocstrings_handlers.python' 2>/dev/null; then
    check env NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict -f docs/site/mkdocs.yml
else
    printf '\n== the documentation site is not built: install the extra "docs"\n'
fi
# Twice the two cores of a small machine: many tests wait, for a limit or a start.
check python -m pytest -n 4 "$@"
