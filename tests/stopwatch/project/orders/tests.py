from unittest.mock import patch

from django.test import TestCase

from . import tasks
from .models import Count, Order


@patch("orders.payments.pay")
class OrderTests(TestCase):
    def test_a_task_runs_at_once(self, pay):
        order = Order.objects.create(item="book")
        tasks.charge.delay(order.pk)
        pay.assert_called_once_with(order.pk)

    def test_orders_are_counted(self, pay):
        Order.objects.create(item="book")
        tasks.count_orders.delay()
        self.assertEqual(Count.objects.get().orders, 1)

    def test_an_order_is_fulfilled(self, pay):
        with self.captureOnCommitCallbacks(execute=True):
            answer = self.client.post("/orders", {"item": "book"})
        self.assertEqual(answer.status_code, 202)
        order = Order.objects.get(pk=answer.json()["order"])
        self.assertEqual([event.what for event in order.events.order_by("pk")], ["reserved", "charged", "shipped"])
        pay.assert_called_once_with(order.pk)
