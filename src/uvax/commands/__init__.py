"""One module for each command of `uvax`, with `main(argv) -> exit code`."""
