"""Text generation: from a prompt to text that comes bit by bit. pipeline.py first."""
