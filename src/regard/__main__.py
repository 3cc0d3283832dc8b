"""`python -m regard` is the command `regard`."""

import sys

from .commands.main import main

sys.exit(main())
