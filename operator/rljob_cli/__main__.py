"""Where the program begins. Ctrl-C ends it without a traceback, also while Python still imports it."""

import sys

from rljob_api.exits import Exit


def main() -> None:
    """Run the command line; the process ends with an exit code of `rljob_api.exits`."""
    try:
        from rljob_cli.main import main as run  # takes two seconds on a slow disk

        run()
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)


if __name__ == "__main__":
    main()
