"""`make release`: builds all that a version consists of into dist/, and pushes nothing unless it is asked to."""
