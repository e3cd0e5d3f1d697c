"""The command line: it parses, calls `admin`, asks and prints, and decides nothing. Nothing imports it."""
