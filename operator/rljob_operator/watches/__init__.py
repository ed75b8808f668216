"""Reads the cluster all the time: objects go into the cache, and jobs that they concern into the queue. I/O."""
