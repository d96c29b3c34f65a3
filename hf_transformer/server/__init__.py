"""HTTP server of the application: uvicorn with client limits, certificate renewal and graceful shutdown."""
