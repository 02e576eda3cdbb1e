-- The results of the stored health checks: the last report of each part of the last days, the oldest first.
SELECT at, report #>> '{verdict,status}' AS status, (report #>> '{outcomes,window,failure_rate}')::float8 AS failure_rate,
       (report #>> '{machine,waiting,count}')::int AS waiting, (report #>> '{machine,live_workers}')::int AS workers,
       (report #>> '{totals,per_100_runs}')::float8 AS repairs
FROM flujo_health_reports WHERE id IN (
    SELECT max(id) FROM flujo_health_reports WHERE slot > now() - make_interval(days => %(days)s::int)
    GROUP BY date_bin(make_interval(secs => %(part_s)s::float8), slot, 'epoch')) ORDER BY at;
