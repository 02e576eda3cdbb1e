from celery import shared_task

from . import payments
from .models import Count, Event, Order


@shared_task
def reserve(order_id):
    Event.objects.create(order_id=order_id, what="reserved")
    return order_id


@shared_task
def charge(order_id):
    payments.pay(order_id)
    Event.objects.create(order_id=order_id, what="charged")
    return order_id


@shared_task
def ship(order_id):
    Event.objects.create(order_id=order_id, what="shipped")


@shared_task
def count_orders():
    Count.objects.create(orders=Order.objects.count())
