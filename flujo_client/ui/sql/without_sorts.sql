-- For the rest of the transaction: walk an index rather than sort what it gives in order.
SELECT set_config('enable_sort', 'off', true);
