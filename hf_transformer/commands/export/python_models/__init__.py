"""What runs an exported model in Triton's Python backend; copied beside it, and never imported here."""
