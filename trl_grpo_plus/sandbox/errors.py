"""Exceptions that the sandbox raises when there is no verdict on a program."""


class SandboxError(RuntimeError):
    """Raised when the sandbox itself failed: no verdict on the program."""


class Starved(SandboxError):
    """Raised when the machine was too busy or could not provide a process: no verdict on the program."""


class Killed(SandboxError):
    """Raised when one of the sandbox's own processes was killed: no verdict on the program.

    The kernel kills processes when memory runs out.
    """
