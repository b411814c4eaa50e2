"""``python -m fedetf``: the command line."""

import sys

from fedetf.cli import main

sys.exit(main())
