"""A pipeline of someone who has configured logging: structlog, the standard library's and Sentry."""

import logging
import os
import sys

import sentry_sdk
import structlog

from flujo_client import Pipeline, Step

OWN = logging.StreamHandler(sys.__stderr__)


def mark(_, __, line):
    line["host"] = "mine"
    return line


def configure():
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, mark, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(sys.__stdout__),
    )
    logging.getLogger().addHandler(OWN)
    sentry_sdk.init(dsn=os.environ["SENTRY_DSN"], release="host-1")


def look(data):
    structlog.get_logger().info("looked", answer=data)
    kept = [OWN in logging.getLogger().handlers, mark in structlog.get_config()["processors"]]
    return [*kept, sentry_sdk.get_client().options["release"]]


pipeline = Pipeline([Step("look", look)], name="logged")
