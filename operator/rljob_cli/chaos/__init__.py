"""`rljob chaos`: faults in a job on purpose, and what must hold all the time. Knows no clock and no cluster."""
