"""Runs' streams for browsers: server-sent events, pages for WSGI, AG-UI and Vercel AI. It comes with the extra `live`, and loads late."""
