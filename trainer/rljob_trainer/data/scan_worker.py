"""A process that scans parts of a file: `python -m rljob_trainer.data.scan_worker`, started by `index.py`.

A pickled task comes on standard input, the pickled results go to standard output.
"""

import pickle
import sys

from rljob_trainer.data.scan import Task, scanned


def main() -> None:
    """Do the task."""
    task: Task = pickle.load(sys.stdin.buffer)
    file = task.kind(task.path)
    file.limit_process()
    pickle.dump([scanned(file, part, task) for part in task.parts], sys.stdout.buffer)


if __name__ == "__main__":
    main()
