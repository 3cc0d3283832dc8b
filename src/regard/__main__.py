"""`python -m regard` is the command `regard`."""

import sys

from .cli import main

sys.exit(main())
