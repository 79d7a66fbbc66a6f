"""`python -m tfdist`: the command `tfdist`."""

import sys

from tfdist.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
