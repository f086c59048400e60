"""flows: compose tasks, nothing else; and the command line."""
