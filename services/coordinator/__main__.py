"""`python -m services.coordinator`: a coordinator process."""

from lockstep.runtime.process import run_program
from services.coordinator.server import serve
from services.coordinator.settings import parse_arguments


def main() -> None:
    settings = parse_arguments()
    run_program(lambda: serve(settings), traced_as="coordinator")


if __name__ == "__main__":
    main()
