"""Text generation, from a prompt to a stream of text. Start reading at pipeline.py."""
