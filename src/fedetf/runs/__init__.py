"""The run folder, written and read: whoever writes a format reads it."""
