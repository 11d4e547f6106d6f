"""`python -m services.pipeline`: runs jobs over committed events; with the argument `executor`, tasks of such a run."""

import sys

if __name__ == "__main__":
    if sys.argv[1:] == ["executor"]:
        from services.pipeline.executor import become_executor

        become_executor()
    from services.pipeline.command import main

    sys.exit(main())
