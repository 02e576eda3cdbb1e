-- For this transaction: no statement may take longer than this, and each is planned for the window it is given.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, true), set_config('plan_cache_mode', 'force_custom_plan', true);
