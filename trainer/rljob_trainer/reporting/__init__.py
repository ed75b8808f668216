"""What a run reports, written by the driver: events, metrics, findings, progress. `reading/` reads it again."""
