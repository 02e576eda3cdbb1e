-- For the rest of the transaction: walk an index rather than sort what it gives in order.
SET LOCAL enable_sort = off;
