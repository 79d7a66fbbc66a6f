#!/usr/bin/env bash
# Runs the conformance suites with other versions of Python, TensorFlow and Keras 3, each choice in a fresh environment.
#
#   scripts/test_matrix.sh [PYTHON:TENSORFLOW[:KERAS] ...] [-- argument of pytest ...]
#
#   scripts/test_matrix.sh                      the pairs below
#   scripts/test_matrix.sh 3.11:2.16 -- -x      one pair, to its first failure
#   scripts/test_matrix.sh 3.11:2.16:3.10       one pair with this Keras 3 instead of the newest
#
# A Python that is not there is named, and the others go on: find_python.sh looks for it.
# The last lines are the results. Exit code 0 if all that ran passed, 1 if not, 3 if nothing ran.
#
#   TFDIST_MATRIX_HOROVOD=1     build Horovod in each environment (minutes), and run its tests too
#   TFDIST_MATRIX_DIR=folder    where the environments are made (default: a temporary folder); they are removed
set -euo pipefail
root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly root
# shellcheck source=scripts/find_python.sh
. "$root/scripts/find_python.sh"
# The tests without Horovod; the last one compares all engines.
readonly over_grpc="not horovod and not over_every_engine"
pairs=(3.11:2.16:3.10 3.12:2.18:3.10 3.11:2.20:3.11 3.10:2.21 3.12:2.21 3.13:2.21)

chosen=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    if ! [[ $1 =~ ^3\.[0-9]+:2\.[0-9]+(:3\.[0-9]+)?$ ]]; then
        echo "test_matrix.sh: got $1, allowed is PYTHON:TENSORFLOW[:KERAS]. Write for example 3.11:2.16." >&2
        exit 2
    fi
    chosen+=("$1")
    shift
done
[ "${1:-}" != -- ] || shift
[ ${#chosen[@]} -eq 0 ] || pairs=("${chosen[@]}")

folder="$(mktemp -d "${TFDIST_MATRIX_DIR:-${TMPDIR:-/tmp}}/tfdist-matrix.XXXXXX")"
readonly folder
trap 'rm -rf -- "$folder"' EXIT
# A copy, because pip builds in the folder of the source, and because this takes long: the files may change meanwhile.
mkdir "$folder/source"
for name in pyproject.toml README.md LICENSE tfdist tests scripts examples; do
    cp -r -- "$root/$name" "$folder/source"
done

# Makes an environment for one pair and runs the suites in it; the last line of its output is the result.
run_pair() {
    local python version tensorflow keras environment="$folder/environment" result=0
    IFS=: read -r version tensorflow keras <<<"$1"
    if ! python="$(find_python "$version")"; then
        echo "Python $version is not here"
        return 3
    fi
    rm -rf -- "$environment"
    "$python" -m venv "$environment" >&2
    # TensorFlow 2.20 allows protobuf 7, with which it cannot write a graph as text.
    local protobuf="protobuf"
    if [ "$tensorflow" = 2.20 ]; then protobuf="protobuf<7"; fi
    local extras="" selection=(-k "$over_grpc")
    if [ "${TFDIST_MATRIX_HOROVOD:-}" = 1 ]; then
        extras="[horovod]" selection=()
    fi
    "$environment/bin/pip" --quiet --disable-pip-version-check install "tensorflow==$tensorflow.*" "tf-keras==$tensorflow.*" \
        "keras${keras:+==$keras.*}" "$protobuf" pytest pytest-timeout pytest-xdist "$folder/source$extras" >&2 ||
        { echo "TensorFlow $tensorflow cannot be installed with Python $version"; return 1; }
    if [ -n "$extras" ]; then
        "$environment/bin/tfdist" horovod install >&2 || { echo "Python $version, TensorFlow $tensorflow: no Horovod"; return 1; }
    fi
    (cd -- "$folder/source" &&
        env PYTHONPATH= "$environment/bin/python" -m pytest -p no:cacheprovider -n 1 "${selection[@]}" tests/conformance "${@:2}") \
        >"$folder/output" 2>&1 || result=1
    cat -- "$folder/output" >&2
    "$environment/bin/python" -c "
import platform
from importlib.metadata import version
print(f'Python {platform.python_version()}, TensorFlow {version(\"tensorflow\")}, Keras {version(\"keras\")}:', end=' ')"
    tail -n 1 -- "$folder/output" | tr -d =
    return $result
}

results=() code=3
for pair in "${pairs[@]}"; do
    printf '\n== Python %s, TensorFlow %s\n' "${pair%%:*}" "${pair#*:}" >&2
    status=0
    line="$(run_pair "$pair" "$@")" || status=$?
    results+=("$line")
    if [ "$status" = 1 ]; then code=1; fi
    if [ "$status" = 0 ] && [ "$code" = 3 ]; then code=0; fi
done
printf '\n%s' "${results[@]}"
echo
exit $code
