"""What benchmarks/generation.py is made of: models whose tokens come at known moments, and clients that time them."""
