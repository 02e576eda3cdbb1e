-- For this transaction: no statement may take longer than this; each is planned for its window, and has the memory to count without sorting.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, true), set_config('plan_cache_mode', 'force_custom_plan', true),
       set_config('work_mem', '64MB', true), set_config('jit', 'off', true);
