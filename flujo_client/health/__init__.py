"""The health check: rows counted by Postgres in, a report out. One aggregator for the command and the scheduled task.

Pure: no clock, no connection. `sql/` holds the two statements that both sides use, `facts` reads their rows, `aggregate` adds
them up, `verdict` and `advice` judge, `report` is the result.
"""
