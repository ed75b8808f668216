"""What is shown on a terminal, and how: colours, tables, charts, the live display of a run. The verbs print with it."""
