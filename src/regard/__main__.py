"""Run the `regard` command with `python -m regard`."""

import sys

from .commands.main import main

sys.exit(main())
