"""The code that runs inside the sandbox, where it is a separate package that uses only the standard library."""
