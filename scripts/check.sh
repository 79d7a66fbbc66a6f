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
check python scripts/check_words.py
if python -c 'import mkdocs, material, mkdocstrings_handlers.python' 2>/dev/null; then
    check env NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict -f docs/site/mkdocs.yml
else
    printf '\n== the documentation site is not built: install the extra "docs"\n'
fi
# Two processes, which take whole files in turn; `-n 0` as an argument has one do all.
check python -m pytest -n 2 "$@"
