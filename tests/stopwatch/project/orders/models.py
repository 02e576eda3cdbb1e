from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)


class Event(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="events")
    what = models.CharField(max_length=20)


class Count(models.Model):
    orders = models.IntegerField()
