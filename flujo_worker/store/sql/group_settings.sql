-- How the statement that follows in the same transaction is planned: once, and with one look-up by index for each key of the group. The
-- planner knows a table as it was when it was last analyzed; for a small one it would read all of it, and keep doing so as it grows.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
