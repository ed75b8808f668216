"""How much of a volume is looked at, unless the command line says otherwise."""

DEPTH = 4
"""levels below the directory"""
ENTRIES = 1_000_000
"""files and directories"""
SECONDS = 60.0
