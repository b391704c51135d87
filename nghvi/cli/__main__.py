"""``python -m nghvi.cli``."""

import sys

from nghvi.cli import main

sys.exit(main())
