"""`python -m services.store`: a store process."""

from lockstep.runtime.process import run_program
from services.store.server import serve
from services.store.settings import parse_arguments


def main() -> None:
    settings = parse_arguments()
    run_program(lambda: serve(settings), traced_as="store")


if __name__ == "__main__":
    main()
