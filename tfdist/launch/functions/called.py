"""The worker's side of `tfdist.launch`: `python -m tfdist.launch.functions.called FOLDER`."""

import importlib
import os
import pickle
import sys
from pathlib import Path

from tfdist.cluster.instance_variables import INSTANCE_INDEX
from tfdist.launch.functions.calls import Outcome, make_call, own_frames

CALL = "call"  # the file with (sys.path, the call of `pickle_call`)
EVALUATOR = "evaluator"


def main(folder: Path) -> None:
    """Makes the call in the folder, and writes its outcome there.

    An error of the call ends this process as it ends any program: with a traceback, whose first
    frame is the function's, and a code of tfdist's for its own errors.
    """
    own = folder / os.environ.get(INSTANCE_INDEX, EVALUATOR)
    own.unlink(missing_ok=True)  # of an earlier start
    path, call = pickle.loads((folder / CALL).read_bytes())
    sys.path[:] = path
    importlib.invalidate_caches()
    try:
        outcome = Outcome.of_value(make_call(call))
    except Exception as error:
        Outcome.of_error(error).write(own)
        error = error.with_traceback(own_frames(error))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    outcome.write(own)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
