"""`python -m spark_lance <command> <path>`; see `spark_lance.cli`."""

from __future__ import annotations

import sys

from spark_lance.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
