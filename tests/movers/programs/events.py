"""Lists what TensorFlow's own reader finds in the event files of folders."""

import glob
import json
import os
import sys

import tensorflow as tf

v1 = tf.compat.v1

found = {}
for folder in sys.argv[1:]:
    events = []
    for path in sorted(glob.glob(os.path.join(folder, "events.out.tfevents.*"))):
        for event in v1.train.summary_iterator(path):
            what = event.WhichOneof("what")
            values = [
                [value.tag, value.WhichOneof("value"), value.metadata.plugin_data.plugin_name]
                for value in event.summary.value
            ]
            events.append([what, event.step, values])
    found[os.path.basename(folder)] = events
print(json.dumps(found))
