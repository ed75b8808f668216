"""All HTTP with the heads of jobs: one watcher for each driver, and one sender of orders. I/O."""
