"""`python -m services.pipeline`: runs jobs over committed events."""

import sys

from services.pipeline.command import main

if __name__ == "__main__":
    sys.exit(main())
