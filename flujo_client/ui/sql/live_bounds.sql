-- The newest event of a run is read from the end of an index, where the planner would rather sort all of them.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, true), set_config('enable_sort', 'off', true), set_config('jit', 'off', true);
