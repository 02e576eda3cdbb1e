"""The page: where runs stopped and why, and what moves them. Server-rendered; it comes with the extra `ui`, and loads late."""
