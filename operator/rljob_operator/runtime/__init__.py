"""What each process of the operator needs: leader election, logs, probes, background tasks. I/O."""
