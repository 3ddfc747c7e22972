"""Where programs that a model wrote run: [`Sandbox`].

sandbox  the sandbox, from this side
tiers    the ways to lock a program in that this machine has
talk     messages to a program, and what may come back
attacks  escapes that are tried before a tier is used
child/   what runs inside: standard library only, never imported here but for plain data
"""

from .child.plain import names_of
from .sandbox import KILLED, TOO_LONG, Killed, Program, Sandbox, SandboxError, Starved, message_size


__all__ = ["KILLED", "TOO_LONG", "Killed", "Program", "Sandbox", "SandboxError", "Starved", "message_size", "names_of"]
