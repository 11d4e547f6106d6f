"""`python -m services.postgres_participant`: a participant process beside one PostgreSQL database."""

from lockstep.runtime.process import run_program
from services.postgres_participant.server import serve
from services.postgres_participant.settings import parse_arguments


def main() -> None:
    settings = parse_arguments()
    run_program(lambda: serve(settings))


if __name__ == "__main__":
    main()
