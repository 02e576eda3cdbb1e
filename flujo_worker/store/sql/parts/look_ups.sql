       set_config('plan_cache_mode', 'force_generic_plan', is_local), set_config('jit', 'off', is_local), set_config('enable_seqscan', 'off', is_local),
       set_config('enable_bitmapscan', 'off', is_local), set_config('enable_hashjoin', 'off', is_local), set_config('enable_mergejoin', 'off', is_local),
       set_config('cpu_index_tuple_cost', '1000', is_local)
