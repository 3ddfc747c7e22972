"""What runs inside the sandbox: read as files there, one by one, with nothing but the standard library."""
