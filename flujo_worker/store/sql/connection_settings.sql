-- Plan statements once, with a look-up by key for each row. The planner knows a table as it was when it was last analyzed: it would read a small one as a
-- whole, and continue to do so as it grows. So these settings leave only look-ups, make reading index entries the most expensive, and materialise nothing.
SELECT set_config('enable_material', 'off', is_local),
-- include look_ups
FROM (SELECT false AS is_local) connection;
