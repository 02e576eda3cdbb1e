"""An order whose confirmation is sent in the background."""

from flujo_client import FlujoClient, Pipeline, Step, StepConfig

BEHIND = StepConfig(execution_mode="background", max_retries=2)


def price(item: str) -> str:
    return f"{item}: 12.50"


def send(order: str) -> str:
    return f"sent: {order}"


def receipt(order: str) -> str:
    return f"receipt for {order}"


pipeline = Pipeline([Step("price", price), Step("send", send, config=BEHIND), Step("receipt", receipt)], name="orders")


def tend(client: FlujoClient, run_id: str) -> list[str]:
    """Start again what failed, and tell what was started."""
    for task in client.get_failed_background_tasks(run_id):
        print(task.id, task.name, task.error and task.error.message)  # noqa: T201 - it is shown to people
    return [task.id for task in client.retry_failed_background_tasks(run_id, max_retries=3)]
