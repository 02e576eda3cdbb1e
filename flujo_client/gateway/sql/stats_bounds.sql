-- For this transaction: stats.sql may take no longer than this, and has the memory to count attempts without sorting them.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, true), set_config('work_mem', '64MB', true), set_config('jit', 'off', true);
