-- For this transaction: a statement may take no longer than this, has the memory to count many rows without sorting them, and is helped by other processes.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, true), set_config('work_mem', '64MB', true), set_config('jit', 'off', true),
       set_config('parallel_tuple_cost', '0.01', true);
