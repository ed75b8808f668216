"""The command line where packages of a model cannot be imported."""

MODEL = ("torch", "ray", "sglang", "megatron", "transformers")
SCRIPT = """
import sys

ABSENT = {absent!r}


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"nothing of a model is needed here: {{name}}", name=name)


sys.meta_path.insert(0, Refuse())
from rljob_cli.main import main
main()
"""


def without_the_model(*others: str) -> str:
    """Return the program: what follows `python -c` it are the words of a verb. `others` are absent, too."""
    return SCRIPT.format(absent={*MODEL, *others})
