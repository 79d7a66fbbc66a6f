#!/usr/bin/env bash
# Sets up what is missing, then runs every check and test. Arguments go to pytest.
set -euo pipefail
root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

"$root/scripts/setup.sh" test >&2
exec "$root/scripts/check.sh" "$@"
