"""What is observed of a job and all that belongs to it, and what is known of its past. Values only.

objects of the cluster, answers of the driver ─► Observed;  status ─► JobHistory;  queue ─► QueueDecision
"""
