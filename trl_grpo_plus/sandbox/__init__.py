"""Runs model-written programs in a [`Sandbox`].

sandbox            the sandbox, from the trainer's side
isolation          the isolation tiers that this machine may support
protocol           messages to a program, and the checks of its replies
self_test          escapes that are tried before an isolation tier is used
resource_pressure  detects that the machine is short of resources, so that programs are not penalised for it
errors             exceptions for a missing verdict
child/             code that runs inside the sandbox: standard library only; the trainer imports its data
                   formats and one check of what the kernel allows
"""

from .child.plain_data import message_size, names_of
from .errors import Killed, SandboxError, Starved
from .protocol import KILLED, TOO_LONG, Program
from .sandbox import Sandbox
