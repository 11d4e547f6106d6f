"""`python -m lockstep.cli`."""

from lockstep.cli.main import app

if __name__ == "__main__":
    app()
