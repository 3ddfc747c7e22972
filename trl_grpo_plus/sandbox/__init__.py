"""Runs programs that a model wrote: [`Sandbox`].

sandbox            the sandbox, from the trainer's side
isolation          the ways to lock a program in that this machine has
protocol           messages to a program, and what may come back
self_test          escapes that are tried before a way of isolation is used
resource_pressure  detects that the machine is short of something, so that programs are not penalised for it
errors             what is raised where there is no verdict
child/             what runs inside: standard library only, never imported here but for plain data
"""

from .child.plain_data import message_size, names_of
from .errors import Killed, SandboxError, Starved
from .protocol import KILLED, TOO_LONG, Program
from .sandbox import Sandbox
