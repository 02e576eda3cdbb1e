SELECT queue, reason, count, oldest_s FROM flujo_waiting;
