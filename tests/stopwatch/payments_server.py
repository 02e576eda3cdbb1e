"""The shop's payment provider, on this machine: what it has charged is counted here, whatever becomes of workers."""

from queue import SimpleQueue

from tests.support.post_server import PostServer


class PaymentsServer(PostServer):
    """Charge orders over HTTP.

    Attributes:
        charged: the orders that were charged, in this order.
        calls: the orders of all calls. The first call for `held` gets no answer and charges nothing; `declined` is never charged.
    """

    def __init__(self, *, held, declined):
        super().__init__()
        self.charged, self.calls, self.held, self.declined = [], SimpleQueue(), held, declined

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def answer(self, _headers, body):
        order = int(body)
        is_first, self.held = order == self.held, None if order == self.held else self.held
        self.calls.put(order)
        if is_first:
            return None
        if order == self.declined:
            return 402, b""
        self.charged.append(order)
        return 200, b""
