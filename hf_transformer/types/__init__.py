"""Types shared by the whole service."""
