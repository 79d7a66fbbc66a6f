"""`tfdist doctor`: what works on this machine, what does not, and the mend."""

from tfdist.launch.doctor.command import add_arguments, main

__all__ = ["add_arguments", "main"]
