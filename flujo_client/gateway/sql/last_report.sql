SELECT report FROM flujo_health_reports ORDER BY id DESC LIMIT 1;
