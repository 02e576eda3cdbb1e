"""A run that exists if and only if your SQLAlchemy session commits."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from flujo_client import FlujoClient, RunHandle


def place_order(client: FlujoClient, session: Session, customer: str) -> RunHandle:
    session.execute(text("INSERT INTO orders (customer) VALUES (:customer)"), {"customer": customer})
    run = client.enqueue("examples.greeting:pipeline", customer, connection=session)
    session.commit()
    run.publish()
    return run
