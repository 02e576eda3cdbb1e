-- For this transaction: what is read of a run is found by an index, also where a few runs have most of the rows, and takes no time to compile.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
       set_config('jit', 'off', true);
