"""`python -m services.backup`: a process that has only the backup role."""

from lockstep.runtime.process import run_program
from services.backup.server import serve
from services.backup.settings import parse_arguments


def main() -> None:
    settings = parse_arguments()
    run_program(lambda: serve(settings))


if __name__ == "__main__":
    main()
