"""The HTTP server under the application: uvicorn, with limits for clients, renewed certificates and a graceful end."""
