DELETE FROM flujo_hook_calls WHERE run_id = %(run)s AND payload = %(payload)s AND attempt = %(attempt)s AND worker = %(worker)s;
