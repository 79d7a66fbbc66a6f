#!/usr/bin/env bash
# Makes .venv with everything installed, Horovod included; returns at once when all is there.
#
#   scripts/setup.sh run|test       "test" adds what the checks and tests need, TensorFlow 2.15 to compare with among it
#
#   PYTHON=python3.12               the interpreter for a new .venv (default: python3)
#   TFDIST_BUILD_HOROVOD=0          leave Horovod out;  =1: try again after a failure
#   TFDIST_OLD_TENSORFLOW=0         leave TensorFlow 2.15 out;  =1: try again after a failure
#   TFDIST_CACHE_DIR=folder         where built Horovod wheels and the sample of examples/bert are kept (default: ~/.cache/tfdist)
set -euo pipefail

readonly kind="${1:?usage: setup.sh run|test}"
root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly root
readonly venv="$root/.venv" python="$root/.venv/bin/python" state="$root/.venv/set-up"
readonly supported='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'
readonly version='import sys; print("%d.%d" % sys.version_info[:2])'

say() { printf 'set-up: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# What is installed depends on these and on nothing else; $root, because the installation is editable.
inputs() {
    printf '%s\n' "$root"
    cat "$root/pyproject.toml" "$root/scripts/constraints.txt" "$root/scripts/setup.sh"
    cat "$root"/tfdist/launch/horovod/*.py
    cat "$root/scripts/constraints-tensorflow-2.15.txt" "$root/scripts/old_tensorflow.py"
}
key="$(inputs | sha256sum | cut -d ' ' -f 1)"
readonly key
has_stamp() { [ -f "$state/$1" ] && [ "$(head -n 1 "$state/$1")" = "$key" ]; }

make_venv() {
    if [ -x "$python" ] && "$python" -c 'import pip' 2>/dev/null; then
        "$python" -c "$supported" || fail ".venv has Python $("$python" -c "$version"), tfdist needs 3.10 to 3.13. Delete .venv, then set PYTHON to one of those."
        return
    fi
    local with="${PYTHON:-python3}"
    command -v "$with" >/dev/null || fail "there is no $with on PATH. Install Python 3.10 to 3.13, or set PYTHON to one."
    "$with" -c "$supported" || fail "$with is Python $("$with" -c "$version" 2>/dev/null || echo unknown), tfdist needs 3.10 to 3.13. Set PYTHON to one of those."
    "$with" -c 'import ensurepip, venv' 2>/dev/null || fail "$with cannot make virtual environments. Install its venv module (Debian, Ubuntu: apt install python3-venv)."
    say "making .venv with $("$with" -V)"
    "$with" -m venv --clear "$venv"
}

install_packages() {
    if has_stamp "$kind" || has_stamp test; then return; fi
    make_venv
    local extras="bert,cnn,examples,horovod"
    [ "$kind" = run ] || extras="$extras,test"
    local pip=("$python" -m pip --disable-pip-version-check install --quiet --constraint "$root/scripts/constraints.txt")
    say "installing TensorFlow into .venv; the first time this downloads about 0.6 GB, and takes one or two minutes"
    # Without isolation, in which pip would build the package with an unpinned hatchling.
    "${pip[@]}" pip hatchling && "${pip[@]}" tensorflow &&
        say "installing tfdist and [$extras]; one or two minutes more" &&
        "${pip[@]}" --no-build-isolation --editable "$root[$extras]" ||
        fail "pip could not install the packages, for the reason above. Fix it and run this again."
    mkdir -p "$state"
    echo "$key" >"$state/$kind"
    is_new=true
}

install_horovod() {
    if has_stamp horovod; then return; fi
    if [ "${TFDIST_BUILD_HOROVOD:-}" = 0 ]; then
        say "Horovod is left out, since TFDIST_BUILD_HOROVOD=0. Everything over gRPC works without it."
        return
    fi
    if [ "${TFDIST_BUILD_HOROVOD:-}" != 1 ] && has_stamp horovod-failed; then
        say "Horovod is missing since its build failed; TFDIST_BUILD_HOROVOD=1 tries again. $(tail -n 1 "$state/horovod-failed")"
        return
    fi
    local reason code=0
    # Its progress goes where this script's goes.
    { reason="$("$python" -m tfdist horovod install 2>&1 >&3)" || code=$?; } 3>&2
    case $code in
        0)
            rm -f "$state/horovod-failed"
            echo "$key" >"$state/horovod"
            ;;
        3) # Cannot be built here: gRPC needs none of it.
            reason="${reason##*$'\n'}"
            printf '%s\n%s\n' "$key" "$reason" >"$state/horovod-failed"
            say "$reason Everything over gRPC works without it; TFDIST_BUILD_HOROVOD=1 tries again."
            ;;
        *) # Stopped by a signal, or a fault of the command.
            [ -z "$reason" ] || say "$reason"
            exit "$code"
            ;;
    esac
}

install_old_tensorflow() {
    if [ "$kind" != test ] || has_stamp old-tensorflow; then return; fi
    if [ "${TFDIST_OLD_TENSORFLOW:-}" = 0 ]; then
        say "TensorFlow 2.15 is left out, since TFDIST_OLD_TENSORFLOW=0. The tests that compare with it will skip."
        return
    fi
    if [ "${TFDIST_OLD_TENSORFLOW:-}" != 1 ] && has_stamp old-tensorflow-failed; then
        say "The tests that compare with TensorFlow 2.15 will skip; TFDIST_OLD_TENSORFLOW=1 tries again. $(tail -n 1 "$state/old-tensorflow-failed")"
        return
    fi
    local reason code=0
    reason="$("$python" "$root/scripts/old_tensorflow.py")" || code=$?
    case $code in
        0)
            rm -f "$state/old-tensorflow-failed"
            echo "$key" >"$state/old-tensorflow"
            ;;
        3) # Cannot be had here: tfdist itself needs none of it.
            printf '%s\n%s\n' "$key" "$reason" >"$state/old-tensorflow-failed"
            say "$reason The tests that compare with it will skip; TFDIST_OLD_TENSORFLOW=1 tries again."
            ;;
        *) exit "$code" ;;
    esac
}

is_complete() {
    { has_stamp "$kind" || has_stamp test; } && has_stamp horovod && { [ "$kind" = run ] || has_stamp old-tensorflow; }
}
if is_complete; then exit; fi

# One set-up at a time in this folder. The lock is on this very file, so it leaves nothing behind.
exec 9<"${BASH_SOURCE[0]}"
if command -v flock >/dev/null && ! flock --nonblock 9; then
    say "waiting for another set-up in this folder to end"
    flock 9
fi
is_new=false
install_packages
install_horovod
install_old_tensorflow
if $is_new; then say "ready: scripts/run.sh trains, scripts/test.sh tests; '. .venv/bin/activate' gives tfdist and python"; fi
