"""What the process keeps in memory: the newest version of every object, and which jobs are due. No I/O."""
