"""The command line: one file a command, none of which loads anything heavy before it runs."""
