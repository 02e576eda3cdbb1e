from celery import chain
from django.db import transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt

from .models import Order
from .tasks import charge, reserve, ship


@csrf_exempt
@transaction.atomic
def place_order(request):
    order = Order.objects.create(item=request.POST["item"])
    transaction.on_commit(chain(reserve.s(order.pk), charge.s(), ship.s()).delay)
    return JsonResponse({"order": order.pk}, status=202)
