"""``python -m nghvi``, the same program as the command ``nghvi``."""

import sys

from nghvi.cli import main

sys.exit(main())
