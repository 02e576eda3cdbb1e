-- include open_breakers
ORDER BY model LIMIT %(limit)s::int;
