"""sglang-router in this process: `python -m rljob_trainer.engines.router_process FLAGS`, with the router's own flags.

It demands the key in RLJOB_ENGINE_KEY, if there is one: a flag could be read by each user of the machine.
`sglang_router.launch_router` does the rest, but imports all of SGLang for a load balancer that is not used here: 5 s of
a core at every start.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import setproctitle
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs

from rljob_trainer.engines.key import KEY_VARIABLE


def main(arguments: Sequence[str]) -> None:
    """Serve until the process is killed."""
    setproctitle.setproctitle("sglang::router")
    parser = argparse.ArgumentParser(prog="python -m rljob_trainer.engines.router_process", description=__doc__)
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    settings = RouterArgs.from_cli_args(parser.parse_args(arguments), use_router_prefix=False)
    settings.api_key = os.environ.pop(KEY_VARIABLE, None) or None
    Router.from_args(settings).start()


if __name__ == "__main__":
    main(sys.argv[1:])
