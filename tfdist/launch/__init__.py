"""Starting a run: `tfdist run`, and files for the engines that start one. No TensorFlow."""
