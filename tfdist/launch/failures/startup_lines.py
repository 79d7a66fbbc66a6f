"""Start-up lines of TensorFlow's C++ code, which say nothing about the run.

Several of them look like failures, but are printed on every machine without a GPU, by every input
that ends, or by the peers of a worker that has ended. All other warnings and errors are no start-up
lines: users should see them.
"""

from __future__ import annotations

import re

_HEAD = (
    # absl: "I0000 00:00:1795387111.731098    7492 cudart_stub.cc:31] "
    r"(?:(?P<level>[IWEF])\d{4} \d\d:\d\d:[\d.:]+ +\d+ "
    # Up to TensorFlow 2.17: "2026-11-22 22:38:31.731098: I tensorflow/core/util/port.cc:153] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<old_level>[IWEF]) )"
    r"\S+\.(?:cc|cpp|cu|h):\d+\] "
)
_LINE = re.compile(f"{_HEAD}(?P<text>.*)")
_HARMLESS = re.compile(
    # No driver, or no GPU. Other errors of cuInit are as in a GPU that does not work.
    r"failed call to cuInit: .*(?:UNKNOWN ERROR \(303\)|CUDA_ERROR_NO_DEVICE)"
    r"|Unable to register cu\w+ factory: Attempting to register factory"
    r"|computation placer already registered"
    r"|Input of GeneratorDatasetOp::Dataset will not be optimized because"
    r"|GPU trace was not collected"  # of a traced step
    r"|TF-TRT Warning: Could not find TensorRT"
    # The peers of a worker that has ended tell it what to forget. Its end is reported elsewhere.
    r"|Cleanup partition error: UNAVAILABLE|^UNAVAILABLE: failed to connect to all addresses"
    r"|tfdist_\w+: Skipping cancelled dequeue attempt with queue not closed"
    # An iterator or a call was closed while it fetched a value that is no longer needed.
    r"|Local rendezvous is aborting with status: (?:ABORTED: Cleanup|OUT_OF_RANGE|CANCELLED)"
)
_HEADLESS = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "To enable the following instructions: ",  # the second line of cpu_feature_guard.cc
    # Further lines of "Cleanup partition error"
    "Additional GRPC error information from remote target ",
    ":UNKNOWN:Error received from peer ",
    "\t [[{{node MultiDeviceIteratorGetNextFromShard}}]]",  # ... of a local rendezvous' line
)


def is_startup_line(line: str) -> bool:
    """Returns whether TensorFlow prints such a line in runs in which all is well."""
    if line.startswith(_HEADLESS):
        return True
    found = _LINE.match(line)
    if found is None:
        return False
    level = found["level"] or found["old_level"]
    return level == "I" or (level != "F" and _HARMLESS.search(found["text"]) is not None)
