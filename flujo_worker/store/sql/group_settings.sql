-- How the statement that follows in the same transaction is planned: once, and with a look-up by key for each row of the group. The planner
-- knows a table as it was when it was last analyzed: a small one it would read as a whole, and keep doing so as it grows. So nothing is
-- left to it but look-ups, and each entry of an index that it might read costs more than anything else.
-- Nor does it wait for long: who holds a budget commits soon, and if somebody does not, the others of the group are to go on alone.
-- include group_settings
;
