"""Text generation: from a prompt to a stream of text. The entry point is pipeline.py."""
