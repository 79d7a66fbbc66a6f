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
exec "$root/scripts/check.sh" "$@"
