"""Pipelines whose steps are the tasks of `task_shop`."""

import task_shop as shop

from flujo_client import Limit, Pipeline, Step, StepConfig

two = Step.of(shop.resize) >> Step.of(shop.resize.s(width=3), "again")
late = Step("late", shop.late)
double = Step("double", shop.double)
look = Step("look", shop.look)
fetch = Step("fetch", shop.fetch)
later = Step("later", shop.later)
never = Step("never", shop.never)
flaky = Step("flaky", shop.flaky)
plain = Step("plain", shop.plain)
stubborn = Step("plain", shop.plain, config=StepConfig(max_retries=2))
soft = Step("soft", shop.soft)
hard = Step("hard", shop.hard)
based = Step("based", shop.based)
spread = Step.of(shop.total, spread=True)
spread_list = Step.of(shop.add, spread=True)
ignoring = Step.of(shop.add.si(1, 2))
state = Step("state", shop.slow_import)
forbidden = Step("forbidden", shop.forbidden)
rejecting = Step("rejecting", shop.rejecting)
limited = Step("limited", shop.limited, limit=Limit("shop", 1))
rest = Step("fetch", shop.fetch) >> Step.of(shop.resize)
group = Pipeline([Step.parallel("all", {"bad": Step("bad", shop.plain), "good": Step("good", shop.late)})])
chain = Step.of(shop.wait_for) >> Step.of(shop.resize)
named_fails = Pipeline([Step("plain", "task_shop:plain")])
named = Pipeline([Step("named", "task_shop:resize")])
