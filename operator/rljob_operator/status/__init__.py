"""The status of a job: conditions, what it waits for, what the operator remembers, and what is announced. Pure."""
