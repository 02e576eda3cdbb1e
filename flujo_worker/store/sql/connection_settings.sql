-- How statements are planned: once, and with a look-up by key for each row. The planner knows a table as it was when it was last analyzed: a
-- small one it would read as a whole, and keep doing so as it grows. So nothing is left to it but look-ups, and each entry of an index
-- that it might read costs more than anything else. Nor is anything read once and held to be searched for each row.
SELECT set_config('enable_material', 'off', is_local),
-- include look_ups
FROM (SELECT false AS is_local) connection;
