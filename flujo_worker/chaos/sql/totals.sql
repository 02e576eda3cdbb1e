SELECT (SELECT count(*) FROM flujo_runs WHERE metadata ->> 'chaos' = %(monkey)s) AS runs,
       (SELECT count(*) FROM flujo_runs WHERE metadata ->> 'chaos' = %(monkey)s AND status = 'succeeded') AS succeeded,
       (SELECT count(*) FROM flujo_runs WHERE metadata ->> 'chaos' = %(monkey)s AND status = 'failed') AS failed,
       (SELECT count(*) FROM flujo_runs WHERE metadata ->> 'chaos' = %(monkey)s AND status = 'cancelled') AS cancelled,
       (SELECT count(*) FROM flujo_chaos_effects e JOIN flujo_runs r ON r.id = e.run_id WHERE r.metadata ->> 'chaos' = %(monkey)s) AS effects,
       (SELECT count(*) FROM flujo_attempts a JOIN flujo_runs r ON r.id = a.run_id
        WHERE r.metadata ->> 'chaos' = %(monkey)s AND a.status = 'succeeded' AND EXISTS (SELECT FROM flujo_spends s WHERE s.key = a.key)) AS merged;
