from urllib.request import urlopen

from django.conf import settings


def pay(order_id):
    urlopen(settings.PAYMENTS_URL, data=str(order_id).encode()).close()
