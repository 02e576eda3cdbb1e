-- How the statement that follows in the same transaction is planned: once, and with a look-up by key for each row of the group. The planner
-- knows a table as it was when it was last analyzed: a small one it would read as a whole, and keep doing so as it grows. So nothing is
-- left to it but look-ups, and each entry of an index that it might read costs more than anything else.
-- Nor does it wait for long: who holds a budget commits soon, and if somebody does not, the others of the group are to go on alone.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('cpu_index_tuple_cost', '1000', true), set_config('lock_timeout', '1s', true);
