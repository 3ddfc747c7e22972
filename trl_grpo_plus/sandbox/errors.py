"""What the sandbox raises where there is no verdict on a program."""


class SandboxError(RuntimeError):
    """The sandbox itself failed: no verdict on the program."""


class Starved(SandboxError):
    """The machine was too busy, or had no process to give: no verdict on the program."""


class Killed(SandboxError):
    """Something killed the sandbox's own process, as the kernel does where memory runs out: no verdict either."""
