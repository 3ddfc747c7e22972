"""What runs inside the sandbox: a package of its own there, with nothing but the standard library."""
