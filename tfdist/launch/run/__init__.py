"""`tfdist run`: description, start, supervision and end of the workers."""
