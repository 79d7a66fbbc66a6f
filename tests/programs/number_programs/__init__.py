"""Programs of `keras_numbers`: each module has those of a kind, and adds them to the table."""
