"""RLJobs as people and programs see them: pages, tables, JSON, logs, and what to do next. Pure."""
