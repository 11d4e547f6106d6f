"""`python -m services.broker`: a broker process."""

from lockstep.runtime.process import run_program
from services.broker.server import serve
from services.broker.settings import parse_arguments


def main() -> None:
    settings = parse_arguments()
    run_program(lambda: serve(settings), traced_as="broker")


if __name__ == "__main__":
    main()
