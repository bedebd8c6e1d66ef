"""The command line: each file parses, calls one library function and shows its result."""
