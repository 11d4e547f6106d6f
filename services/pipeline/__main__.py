"""`python -m services.pipeline`: runs jobs over committed events; with the argument `executor`, tasks of such a run."""

import signal
import sys

if __name__ == "__main__":
    if sys.argv[1:] == ["executor"]:
        from services.pipeline.executor import become_executor

        become_executor()
    # To import Spark takes a second, in which Ctrl-C ends the process, too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from services.pipeline.command import main

    sys.exit(main())
