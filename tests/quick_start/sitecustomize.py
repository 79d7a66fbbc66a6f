"""Every Python that a test starts reads this first: importing TensorFlow and ending take less long.

An import of TensorFlow makes half a million objects that stay. Looking through them for garbage, a
thousand times while they are made and once more at the end, takes a third of a program's time.
"""

import atexit
import gc

gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)  # The first to be registered is the last to run.
