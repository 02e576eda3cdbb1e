SELECT name, labels, value FROM flujo_totals;
