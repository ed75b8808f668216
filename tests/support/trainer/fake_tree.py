"""A tree of processes as a run makes it, without what they do: `python fake_tree.py DIRECTORY`.

driver ─► raylet ─► worker ─► server ─► part; every one in a session of its own, as far from a process group as it gets.
Each writes its pid into DIRECTORY. None is tethered to its parent, and the part ignores SIGTERM.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("driver", "raylet", "worker", "server", "part")

if __name__ == "__main__":
    directory, depth = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if NAMES[depth] == "part":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    draft = directory / f"{NAMES[depth]}.draft"
    draft.write_text(str(os.getpid()))
    draft.rename(directory / NAMES[depth])
    if depth + 1 < len(NAMES):
        subprocess.Popen([sys.executable, "-S", __file__, str(directory), str(depth + 1)], start_new_session=True)
    time.sleep(120)
