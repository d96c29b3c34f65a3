"""A real Triton Inference Server as a child process, for the demo, the tests and the benchmarks."""

from hf_transformer.commands.local_triton.server import HOST, SHARED_MEMORY, LocalTriton, free_ports

__all__ = ["HOST", "SHARED_MEMORY", "LocalTriton", "free_ports"]
