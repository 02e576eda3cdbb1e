-- What a settlement is about to change, held, so that the next statement sees it as it stands. Locks: reservations → budgets, by name.
WITH taken AS (SELECT r.scope FROM flujo_reservations r WHERE r.key = %(key)s ORDER BY r.scope FOR UPDATE)
SELECT b.scope FROM flujo_budgets b JOIN taken t ON t.scope = b.scope ORDER BY b.scope FOR UPDATE OF b;
