"""As if eventlet were not installed.

Sentry imports it wherever it is, when the first error is sent. In a thread, its copy of `threading` replaces the lock that tells of the thread's
end, and the pool of threads that Celery then stops waits for ever: with eventlet installed, that is so without Flujo too.
"""

raise ImportError(__doc__)
