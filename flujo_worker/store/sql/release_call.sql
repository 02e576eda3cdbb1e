-- Release a call as if it had not been taken, or with its own loss: the process that was started for it alone has ended.
UPDATE flujo_hook_calls
SET worker = NULL, alone = false, tries = least(tries, 1000000) + %(losses)s::int, losses_alone = least(losses_alone, 1000000) + %(losses)s::int
WHERE run_id = %(run)s AND payload = %(payload)s AND attempt = %(attempt)s AND worker = %(worker)s;
