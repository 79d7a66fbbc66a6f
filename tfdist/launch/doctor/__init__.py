"""`tfdist doctor`: checks of the installation and of this machine, each with a fix."""

from tfdist.launch.doctor.command import add_arguments, main

__all__ = ["add_arguments", "main"]
