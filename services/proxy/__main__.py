"""`python -m services.proxy`: AMQP 1.0 for clients."""

from lockstep.runtime.process import run_program
from services.proxy.server import serve
from services.proxy.settings import parse_arguments


def main() -> None:
    settings = parse_arguments()
    run_program(lambda: serve(settings), traced_as="proxy")


if __name__ == "__main__":
    main()
