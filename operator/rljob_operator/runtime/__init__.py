"""What a process of the operator needs, whatever it does: leader election, logs, probes, background tasks. I/O."""
