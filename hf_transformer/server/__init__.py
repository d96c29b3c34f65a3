"""The HTTP server: uvicorn with limits for clients, renewed certificates and a graceful shutdown."""
