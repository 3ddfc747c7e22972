"""Where programs that a model wrote run: [`Sandbox`].

sandbox   the sandbox, from this side
tiers     the ways to lock a program in that this machine has
talk      messages to a program, and what may come back
attacks   escapes that are tried before a tier is used
scarcity  what a machine that is short of something does: nobody's fault
errors    what is raised where there is no verdict
child/    what runs inside: standard library only, never imported here but for plain data
"""

from .child.plain import message_size, names_of
from .errors import Killed, SandboxError, Starved
from .sandbox import Sandbox
from .talk import KILLED, TOO_LONG, Program
