#!/usr/bin/env bash
# Sets up what is missing, then trains on MNIST with two local workers over gRPC, as
#   tfdist run --num-instances 2 -- examples/mnist/train.py
# does. Arguments go to examples/mnist/train.py, for example: scripts/run.sh --num-steps 500
set -euo pipefail
root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"

case " $* " in
    *" --strategy grpc "* | *" --strategy=grpc "*) ;;
    *" --strategy auto "* | *" --strategy=auto "*) ;;  # chooses gRPC here
    *" --strategy"*)
        echo "run.sh: its two workers meet over gRPC, so --strategy can only be grpc. For another strategy, run scripts/setup.sh run, then start examples/mnist/train.py as its first lines say." >&2
        exit 2
        ;;
esac
"$root/scripts/setup.sh" run >&2
exec "$root/.venv/bin/python" -m tfdist run --num-instances 2 -- "$root/examples/mnist/train.py" "$@"
